package device

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func diskNames(s *Set) string {
	var words []string
	for _, d := range s.Disks {
		words = append(words, d.Bus+":"+d.Target)
	}
	return strings.Join(words, " ")
}

func TestSortDisks_ByBusAndName(t *testing.T) {
	s := &Set{Disks: []*Disk{
		{Bus: "virtio", Target: "vdb"},
		{Bus: "sata", Target: "sdaa"},
		{Bus: "virtio", Target: "vda"},
		{Bus: "ide", Target: "hda"},
		{Bus: "sata", Target: "sdz"},
		{Target: "vdc"},
	}}
	s.SortDisks()
	if got, want := diskNames(s), "virtio:vda virtio:vdb sata:sdz sata:sdaa ide:hda :vdc"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// A disk that joins later, also one that is plugged in, stands where it would if it had been there.
func TestAdd_DiskJoinsItsBus(t *testing.T) {
	s := &Set{Disks: []*Disk{{Bus: "virtio", Target: "vdb"}, {Bus: "virtio", Target: "vdd"}, {Bus: "sata", Target: "sda"}}}
	before := s.Disks
	for _, target := range []string{"vdc", "vda", "vde"} {
		if err := s.Add(&Disk{Bus: "virtio", Target: target}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Add(&Disk{Bus: "scsi", Target: "sda"}); err != nil {
		t.Fatal(err)
	}
	if got, want := diskNames(s), "virtio:vda virtio:vdb virtio:vdc virtio:vdd virtio:vde sata:sda scsi:sda"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	if before[0].Target != "vdb" || before[2].Target != "sda" || len(before) != 3 {
		t.Error("the disks that another holds have changed")
	}
}

func TestSortControllers_MainPartBeforeCompanions(t *testing.T) {
	s := &Set{Controllers: []*Controller{
		{Type: "usb", Index: 1, Model: "ich9-uhci2", HasMaster: true},
		{Type: "scsi", Index: 2},
		{Type: "usb", Index: 1, Model: "ich9-uhci1", HasMaster: true},
		{Type: "usb", Index: 1, Model: "ich9-ehci1"},
		{Type: "usb", Index: 0, Model: "piix3-uhci"},
		{Type: "scsi", Index: NoIndex},
		{Type: "scsi", Index: 0},
	}}
	s.SortControllers()
	var got []string
	for _, c := range s.Controllers {
		got = append(got, fmt.Sprintf("%s%d%s", c.Type, int32(c.Index), c.Model))
	}
	if got, want := strings.Join(got, " "), "usb0piix3-uhci usb1ich9-ehci1 usb1ich9-uhci2 usb1ich9-uhci1 scsi0 scsi2 scsi-1"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// Sorting a list gives the same order as inserting its members one by one.
func TestSort_SameAsInsertion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, slow := &Set{}, &Set{}
		for range rapid.IntRange(0, 30).Draw(t, "controllers") {
			c := &Controller{
				Type: rapid.SampledFrom([]string{"usb", "scsi", "pci"}).Draw(t, "type"),
				// Without an index is the highest.
				Index:     rapid.SampledFrom([]uint{0, 1, 2, 3, 4, NoIndex, NoIndex}).Draw(t, "index"),
				HasMaster: rapid.Bool().Draw(t, "companion"),
			}
			all.Controllers = append(all.Controllers, c)
			slow.Controllers = insert(slow.Controllers, c, controllerFollows)
			d := &Disk{
				Bus:    rapid.SampledFrom([]string{"virtio", "sata", ""}).Draw(t, "bus"),
				Target: rapid.SampledFrom([]string{"vda", "vdb", "vdz", "vdaa", "sdc", "odd"}).Draw(t, "target"),
			}
			all.Disks = append(all.Disks, d)
			slow.Disks = insert(slow.Disks, d, diskFollows)
		}
		all.SortControllers()
		all.SortDisks()
		for i := range all.Controllers {
			if all.Controllers[i] != slow.Controllers[i] {
				t.Fatalf("controller %d is another", i)
			}
			if all.Disks[i] != slow.Disks[i] {
				t.Fatalf("disk %d is another", i)
			}
		}
	})
}
