package blockjob

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// chained is a disk of a running guest with four images.
func chained() *device.Disk {
	image := func(path string, number uint) *device.DiskSource {
		return &device.DiskSource{File: path, Index: number}
	}
	return &device.Disk{
		Target: "vda", Format: "qcow2", Source: image("/i/top.qcow2", 3),
		Backing: []device.BackingLayer{
			{Source: image("/i/two.qcow2", 4), Format: "qcow2"},
			{Source: image("/i/one.qcow2", 5), Format: "qcow2"},
			{Source: image("/base/base.raw", 6), Format: "raw"},
			{Terminator: true},
		},
	}
}

func TestFindCommit(t *testing.T) {
	for name, c := range map[string]struct {
		o    CommitOptions
		want commitRange
	}{
		"all into the lowest":        {CommitOptions{Active: true}, commitRange{0, 3}},
		"the disk's name":            {CommitOptions{Top: "vda", Active: true}, commitRange{0, 3}},
		"the top's path":             {CommitOptions{Top: "/i/top.qcow2", Active: true}, commitRange{0, 3}},
		"shallow":                    {CommitOptions{Active: true, Shallow: true}, commitRange{0, 1}},
		"shallow, and said":          {CommitOptions{Active: true, Shallow: true, Base: "/i/two.qcow2"}, commitRange{0, 1}},
		"by numbers":                 {CommitOptions{Top: "vda[4]", Base: "vda[6]"}, commitRange{1, 3}},
		"by paths":                   {CommitOptions{Top: "/i/two.qcow2", Base: "/i/one.qcow2"}, commitRange{1, 2}},
		"by a name beside the upper": {CommitOptions{Top: "two.qcow2", Base: "../base/base.raw"}, commitRange{1, 3}},
		"below, into the lowest":     {CommitOptions{Top: "vda[5]"}, commitRange{2, 3}},
		"below, shallow":             {CommitOptions{Top: "vda[4]", Shallow: true}, commitRange{1, 2}},
	} {
		got, err := findCommit(chained(), c.o)
		if err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
}

// Commits that libvirt refuses are refused with its error texts. Lodge's own refusals say the reason.
func TestFindCommit_Refuses(t *testing.T) {
	disk := func(change func(*device.Disk)) *device.Disk { d := chained(); change(d); return d }
	plain := func(*device.Disk) {}
	for _, c := range []struct {
		change func(*device.Disk)
		o      CommitOptions
		kind   fault.Kind
		says   string
	}{
		{plain, CommitOptions{}, fault.Invalid, "commit of 'vda' active layer requires active flag"},
		{plain, CommitOptions{Top: "vda[4]", Active: true}, fault.Invalid, "active commit requested but '/i/two.qcow2' is not active"},
		{plain, CommitOptions{Active: true, Shallow: true, Base: "vda[5]"}, fault.Invalid, "base '/i/one.qcow2' is not immediately below '/i/top.qcow2' in chain for '/i/top.qcow2'"},
		{plain, CommitOptions{Top: "vda[6]"}, fault.Invalid, "could not find base image in chain for 'vda'"},
		{plain, CommitOptions{Top: "vda[6]", Shallow: true}, fault.Invalid, "could not find base image"},
		{plain, CommitOptions{Top: "vda[9]"}, fault.Invalid, "could not find backing store index '9' in chain for 'vda'"},
		{plain, CommitOptions{Top: "vdb[4]"}, fault.Invalid, "requested target 'vdb' does not match target 'vda'"},
		{plain, CommitOptions{Top: "/i/none"}, fault.Invalid, "could not find image '/i/none' in chain for 'vda'"},
		{plain, CommitOptions{Active: true, Base: "/i/none"}, fault.Invalid, "could not find image '/i/none' beneath '/i/top.qcow2' in chain for 'vda'"},
		{plain, CommitOptions{Top: "vda[5]", Base: "vda[4]"}, fault.Invalid, "could not find backing store index '4'"},
		{plain, CommitOptions{Top: "vda[4]", Base: "vda[4]"}, fault.Invalid, "could not find backing store index '4'"},
		{func(d *device.Disk) { d.Source, d.Backing = nil, nil }, CommitOptions{Active: true}, fault.Invalid, "could not find base image"},
		{func(d *device.Disk) { d.Backing = d.Backing[3:] }, CommitOptions{Active: true}, fault.Invalid, "could not find base image"},
		{func(d *device.Disk) { d.ReadOnly = true }, CommitOptions{Active: true}, fault.Unsupported, "qemu-img commit"},
		{func(d *device.Disk) { d.Encryption = &device.Encryption{} }, CommitOptions{Active: true}, fault.Unsupported, "unencrypted"},
		{func(d *device.Disk) { d.Backing[2].Format = "vmdk" }, CommitOptions{Active: true}, fault.Unsupported, "format vmdk"},
	} {
		_, err := findCommit(disk(c.change), c.o)
		if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v (%v), want %v saying %q", c.o, err, fault.Of(err), c.kind, c.says)
		}
	}
}

func TestDropCommitted(t *testing.T) {
	for name, c := range map[string]struct {
		s      commitRange
		paths  []string
		nodes  []uint
		format string
	}{
		"all":             {commitRange{0, 3}, []string{"/base/base.raw"}, []uint{6}, "raw"},
		"the top alone":   {commitRange{0, 1}, []string{"/i/two.qcow2", "/i/one.qcow2", "/base/base.raw"}, []uint{4, 5, 6}, "qcow2"},
		"in the middle":   {commitRange{1, 2}, []string{"/i/top.qcow2", "/i/one.qcow2", "/base/base.raw"}, []uint{3, 5, 6}, "qcow2"},
		"all but the top": {commitRange{1, 3}, []string{"/i/top.qcow2", "/base/base.raw"}, []uint{3, 6}, "qcow2"},
	} {
		d := chained()
		dropCommitted(d, c.s)
		var paths []string
		for _, s := range d.Images() {
			paths = append(paths, s.Path())
		}
		if diff := cmp.Diff(c.paths, paths); diff != "" || d.Format != c.format {
			t.Errorf("%s: format %s, and images (-want +got):\n%s", name, d.Format, diff)
		}
		if diff := cmp.Diff(c.nodes, d.Nodes()); diff != "" || !d.Backing[len(d.Backing)-1].Terminator {
			t.Errorf("%s: numbers (-want +got):\n%s, and it ends in %+v", name, diff, d.Backing[len(d.Backing)-1])
		}
	}
}

// A file name in a header may begin with the protocol that QEMU uses to open the file.
func TestRenamed_KeepsNamesRelative(t *testing.T) {
	chain := image.Chain{{Path: "/i/top"}, {Path: "/i/mid"}, {Path: "/i/low/base"}}
	chain[0].Backing, chain[1].Backing = &image.Backing{Name: "file:mid"}, &image.Backing{Name: "file:low/base"}
	if _, will, err := backingNames(chain, commitRange{1, 2}, true); err != nil || will.Name != "low/base" {
		t.Errorf("the base is called %q: %v", will.Name, err)
	}
	chain[1].Backing.Name = "file:/i/low/base"
	if _, will, err := backingNames(chain, commitRange{1, 2}, true); !fault.Is(err, fault.WrongState) {
		t.Errorf("below a whole path the base is called %q: %v", will.Name, err)
	}
}
