package domainxml

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// FuzzParseDevice parses the documents of virsh attach-device, update-device and detach-device.
// An accepted device is written so that it reads back as the same device.
func FuzzParseDevice(f *testing.F) {
	inputs, err := filepath.Glob("testdata/define/*.xml")
	if err != nil || len(inputs) == 0 {
		f.Fatal("no documents to begin with: ", err)
	}
	for _, input := range inputs {
		doc, err := os.ReadFile(input)
		if err != nil {
			f.Fatal(err)
		}
		root, err := xmltree.Parse(string(doc))
		if err != nil {
			continue
		}
		devices := root.Child("devices")
		if devices == nil {
			continue
		}
		for _, device := range devices.Elements() {
			if text, err := xmltree.Format(device); err == nil {
				f.Add(text)
			}
		}
	}
	f.Fuzz(func(t *testing.T, doc string) {
		d, err := ParseDevice(doc, Options{Active: true})
		if err != nil {
			if k := fault.Of(err); k != fault.Invalid && k != fault.Unsupported {
				t.Fatalf("%v: %v", k, err)
			}
			return
		}
		text, err := FormatDevice(d, Style{Active: true, Secure: true})
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseDevice(text, Options{Active: true, Validate: true})
		if err != nil {
			t.Fatalf("cannot read back: %v\n%s", err, text)
		}
		if twice, err := FormatDevice(again, Style{Active: true, Secure: true}); err != nil || twice != text || again.Kind() != d.Kind() {
			t.Fatalf("it is not what it was (%v): %s", err, cmp.Diff(text, twice))
		}
	})
}
