package qemu

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
)

// FuzzAnswers replaces one answer of a QEMU to the questions about its features. The
// capabilities that result are the same after they are stored and read back. They
// serve for definitions, or refuse them with an error.
func FuzzAnswers(f *testing.F) {
	said := recordedAnswers(f)
	for question, answer := range said {
		// A few types with properties are enough, and the beginning of each list, with the
		// machine that is asked for below: the fuzzer tries short inputs more often.
		if strings.Contains(question, "-list-properties ") && !strings.Contains(question, "q35") && !strings.Contains(question, "virtio-blk") {
			delete(said, question)
			continue
		}
		var list, short []json.RawMessage
		if json.Unmarshal(answer, &list) != nil {
			continue
		}
		for i, one := range list {
			if i < 3 || bytes.Contains(one, []byte(`"q35"`)) {
				short = append(short, one)
			}
		}
		text, err := json.Marshal(short)
		if err != nil {
			f.Fatal(err)
		}
		said[question] = text
	}
	questions := slices.Sorted(maps.Keys(said))
	for i, question := range questions {
		f.Add(uint16(i), []byte(said[question]))
		f.Add(uint16(i), []byte("[null]"))
	}
	const doc = `<domain type='qemu'><name>a</name><memory>65536</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os>
		<devices><disk type='file' device='disk'><source file='/a'/><target dev='vda' bus='virtio'/></disk></devices></domain>`
	if c, err := said.Capabilities(); err != nil || c.Canonical("q35") == "q35" {
		f.Fatal("what a fuzzer begins with is no use: ", err)
	}
	f.Fuzz(func(t *testing.T, which uint16, answer []byte) {
		told := maps.Clone(said)
		told[questions[int(which)%len(questions)]] = answer
		c, err := told.Capabilities()
		if err != nil {
			if fault.Is(err, fault.Internal) {
				t.Fatal(err)
			}
			return
		}
		for _, names := range [][]string{c.Devices, c.Objects, c.Commands, c.Chardevs, c.Netdevs, c.Displays, c.TPMModels, c.TPMBackends} {
			if !slices.IsSorted(names) {
				t.Fatalf("%q are out of order", names)
			}
		}
		once, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var kept qemucaps.Capabilities
		if err := json.Unmarshal(once, &kept); err != nil {
			t.Fatal(err)
		}
		if twice, err := json.Marshal(kept); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%s\nis read again as\n%s", once, twice)
		}
		if _, err := understand(doc, &kept); fault.Is(err, fault.Internal) {
			t.Fatal(err)
		}
	})
}
