package domain

import (
	"reflect"
	"testing"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/topology"
)

func TestCloneSharesNothingThatChanges(t *testing.T) {
	original := func() *Definition {
		return &Definition{
			Name: "web",
			Tune: CPUTune{VCPUPins: map[uint]topology.CPUSet{0: topology.CPUs(3)}},
			CPU:  CPU{Topology: &CPUTopology{Cores: 2}},
			Devices: device.Set{Disks: []*device.Disk{{
				Info:   device.Info{Alias: "virtio-disk0", Address: device.PCI{Slot: 4}},
				Source: &device.DiskSource{File: "/images/web.raw"},
			}}},
		}
	}
	d := original()
	c := d.Clone()
	if !reflect.DeepEqual(c, d) {
		t.Fatal("the copy differs from the original")
	}
	c.Tune.VCPUPins[0] = topology.CPUs(7)
	c.CPU.Topology.Cores = 8
	c.Devices.Disks[0].Source.File = "/elsewhere"
	c.Devices.Disks[0].Address = nil
	if !reflect.DeepEqual(d, original()) {
		t.Fatal("a change to the copy shows through the original")
	}
}
