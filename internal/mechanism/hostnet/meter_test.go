package hostnet

import (
	"encoding/binary"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// TestMeter_SameAsListing sends a packet over the loopback between two
// readings.
func TestMeter_SameAsListing(t *testing.T) {
	m, err := OpenMeter()
	if err != nil {
		t.Fatal(err)
	}
	index, err := m.Index("lo")
	if err != nil {
		t.Skipf("no loopback: %v", err)
	}
	before, err := m.Counters(index)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(make([]byte, 1000)); err != nil {
		t.Skipf("the loopback carries nothing: %v", err)
	}
	after, err := m.Counters(index)
	if err != nil || after.RxBytes < before.RxBytes+1000 || after.TxPackets <= before.TxPackets {
		t.Errorf("from %+v to %+v, %v", before, after, err)
	}
	listed, err := ByName("lo")
	if err != nil || listed.RxBytes < after.RxBytes || listed.TxBytes < after.TxBytes || listed.RxPackets < after.RxPackets {
		t.Errorf("the listing has %+v, %v; the meter had %+v", listed.Counters, err, after)
	}
	if _, err := m.Counters(1 << 30); !fault.Is(err, fault.NotFound) {
		t.Errorf("a link that is not there: %v", err)
	}
	if _, err := m.Index("no-such-link"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a name that no link has: %v", err)
	}
	if _, err := m.Index("longer-than-any-link"); !fault.Is(err, fault.Invalid) {
		t.Errorf("a name that no link can have: %v", err)
	}
	m.Close()
	m.Close()
	if _, err := m.Counters(index); err == nil {
		t.Error("a closed meter reads on")
	}
}

// TestMeter_TruncatedAnswers parses every prefix of an answer.
func TestMeter_TruncatedAnswers(t *testing.T) {
	whole := make([]byte, headerSize+statsSize+attrSize+8*counters)
	binary.NativeEndian.PutUint16(whole[4:], newStats)
	attr := whole[headerSize+statsSize:]
	binary.NativeEndian.PutUint16(attr, uint16(len(attr)))
	binary.NativeEndian.PutUint16(attr[2:], stats64)
	binary.NativeEndian.PutUint64(attr[attrSize+16:], 77)
	if c, err := parseCounters(whole, 1); err != nil || c.RxBytes != 77 {
		t.Errorf("a whole answer reads as %+v, %v", c, err)
	}
	for n := headerSize; n < len(whole); n++ {
		if c, err := parseCounters(whole[:n], 1); err == nil {
			t.Errorf("%d bytes of %d read as %+v", n, len(whole), c)
		}
	}
	binary.NativeEndian.PutUint16(whole[4:], unix.NLMSG_ERROR)
	if _, err := parseCounters(whole[:headerSize+2], 1); err == nil {
		t.Error("half an error is no error")
	}
}
