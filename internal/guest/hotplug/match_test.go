package hotplug

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// The document that inserts a medium decides how the medium is used.
func TestFindMatching_Drive(t *testing.T) {
	for what, c := range map[string]struct {
		drive, doc device.Disk
		want       bool
	}{
		"a floppy":                    {device.Disk{Device: "floppy"}, device.Disk{Device: "floppy"}, true},
		"a drive that is not said":    {device.Disk{Device: "floppy"}, device.Disk{}, true},
		"a CD":                        {device.Disk{Device: "cdrom", ReadOnly: true}, device.Disk{Device: "cdrom", ReadOnly: true}, true},
		"a CD, as it runs":            {device.Disk{Device: "cdrom"}, device.Disk{Device: "cdrom", ReadOnly: true}, true},
		"a CD in a floppy drive":      {device.Disk{Device: "floppy"}, device.Disk{Device: "cdrom"}, false},
		"a floppy that is to be read": {device.Disk{Device: "floppy"}, device.Disk{Device: "floppy", ReadOnly: true}, false},
	} {
		c.drive.Target, c.doc.Target = "fda", "fda"
		c.doc.Source = &device.DiskSource{File: "/a"}
		err := updateIn(&device.Set{Disks: []*device.Disk{&c.drive}}, &c.doc)
		if (err == nil) != c.want || err != nil && !fault.Is(err, fault.Unsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
