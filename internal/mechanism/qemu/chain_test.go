package qemu

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// Images are numbered as libvirt does: from the last disk to the first, and in each disk from the top image down.
// The chain in the definition is ignored.
func TestShowChains(t *testing.T) {
	disk := func(alias, file string) *device.Disk {
		return &device.Disk{Info: device.Info{Alias: alias}, Source: &device.DiskSource{File: file, Index: 9}, Format: "qcow2"}
	}
	layer := func(path, format string) device.Layer { return device.Layer{Path: path, Format: format} }
	s := &device.Set{Disks: []*device.Disk{disk("a", "/top"), {Info: device.Info{Alias: "empty"}}, disk("b", "/alone"), disk("c", "/over")}}
	s.Disks[0].Backing = []device.BackingLayer{{Source: &device.DiskSource{File: "/other"}, Format: "raw"}}
	SetChains(s, map[string]device.DiskAttachment{
		"a": {Layers: []device.Layer{layer("/top", "qcow2"), layer("/mid", "qcow2"), {Path: "/dev/base", Format: "raw", Block: true}}},
		"b": {Layers: []device.Layer{layer("/alone", "qcow2")}},
		"c": {Layers: []device.Layer{layer("/over", "qcow2"), layer("/under", "raw")}},
	})
	var got [][]uint
	for _, d := range s.Disks {
		got = append(got, d.Nodes())
	}
	if diff := cmp.Diff([][]uint{{5, 6, 7}, {}, {3}, {1, 2}}, got); diff != "" {
		t.Errorf("numbers (-want +got):\n%s", diff)
	}
	want := []device.BackingLayer{
		{Source: &device.DiskSource{File: "/mid", Index: 6}, Format: "qcow2"},
		{Source: &device.DiskSource{Block: "/dev/base", Index: 7}, Format: "raw"},
		{Terminator: true},
	}
	if diff := cmp.Diff(want, s.Disks[0].Backing); diff != "" {
		t.Errorf("chain (-want +got):\n%s", diff)
	}
	if s.Disks[1].Backing != nil || len(s.Disks[2].Backing) != 1 {
		t.Errorf("an empty drive has %v below it, and an image alone %v", s.Disks[1].Backing, s.Disks[2].Backing)
	}
}
