package hostnet

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzCounters parses answers of the kernel about an interface, of any content and length.
func FuzzCounters(f *testing.F) {
	answer := make([]byte, headerSize+statsSize+attrSize+8*counters)
	native := binary.NativeEndian
	native.PutUint16(answer[4:], newStats)
	native.PutUint16(answer[headerSize+statsSize:], attrSize+8*counters)
	native.PutUint16(answer[headerSize+statsSize+2:], stats64)
	f.Add(answer)
	f.Add(answer[:headerSize+statsSize+attrSize])
	refusal := make([]byte, headerSize+4)
	native.PutUint16(refusal[4:], unix.NLMSG_ERROR)
	f.Add(refusal)
	f.Fuzz(func(t *testing.T, answer []byte) {
		if len(answer) < headerSize {
			return // the receiver checks that before it calls parseCounters
		}
		if c, err := parseCounters(answer, 1); err != nil && c != (Counters{}) {
			t.Fatalf("counters %+v beside %v", c, err)
		}
	})
}
