package device

import "testing"

// The places are libvirt's. A SCSI bus has seven units, also where the controller could have more.
// Promise: G9
func TestDriveAt_LibvirtTargets(t *testing.T) {
	for _, c := range []struct {
		bus, target string
		want        Drive
	}{
		{"scsi", "sda", Drive{}},
		{"scsi", "sdg", Drive{Unit: 6}},
		{"scsi", "sdh", Drive{Controller: 1}},
		{"scsi", "sdq", Drive{Controller: 2, Unit: 2}},
		{"scsi", "sdaa", Drive{Controller: 3, Unit: 5}},
		{"scsi", "vdb", Drive{Unit: 1}},
		{"sata", "sdf", Drive{Unit: 5}},
		{"sata", "sdg", Drive{Controller: 1}},
		{"ide", "hdc", Drive{Bus: 1}},
		{"ide", "hdf", Drive{Controller: 1, Unit: 1}},
		{"fdc", "fdb", Drive{Unit: 1}},
		{"fdc", "fdc", Drive{Controller: 1}},
		{"ide", "hda1", Drive{}},
	} {
		if got, ok := DriveAt(c.bus, c.target); !ok || got != c.want {
			t.Errorf("%s on %s is at %s, not %s", c.target, c.bus, got, c.want)
		}
	}
	for _, c := range [][2]string{{"virtio", "vda"}, {"usb", "sda"}, {"scsi", "nvme0"}, {"scsi", "sd"}, {"scsi", "sdA"}, {"scsi", "sdaaaaaa"}} {
		if got, ok := DriveAt(c[0], c[1]); ok {
			t.Errorf("%s on %s is at %s", c[1], c[0], got)
		}
	}
}

func TestMissingControllers_FillUpToTheDisksOwn(t *testing.T) {
	s := &Set{Controllers: []*Controller{{Type: "scsi", Model: "virtio-scsi"}, {Type: "sata"}, {Type: "scsi", Index: 2, Model: "virtio-scsi"}}}
	disk := &Disk{Bus: "scsi", Info: Info{Address: Drive{Controller: 3}}}
	for running, model := range map[bool]string{true: "virtio-scsi", false: "lsilogic"} {
		missing, err := s.MissingControllers(disk, running)
		if err != nil || len(missing) != 2 {
			t.Fatal(missing, err)
		}
		for i, index := range []uint{1, 3} {
			if c := missing[i]; c.Type != "scsi" || c.Index != index || c.Model != model {
				t.Errorf("running %v: controller %d is %+v", running, i, c)
			}
		}
	}
	none := &Set{}
	if missing, err := none.MissingControllers(disk, true); err != nil || len(missing) != 4 || missing[0].Model != "lsilogic" {
		t.Errorf("of a set without controllers %d are missing, %v", len(missing), err)
	}
	if _, err := s.MissingControllers(&Disk{Bus: "scsi", Info: Info{Address: Drive{Controller: 4000000000}}}, true); err == nil {
		t.Error("four billion controllers")
	}
	if missing, err := s.MissingControllers(&Disk{Bus: "virtio", Info: Info{Address: PCI{}}}, true); missing != nil || err != nil {
		t.Error(missing, err)
	}
}
