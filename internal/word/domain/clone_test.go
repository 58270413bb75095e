package domain

import (
	"reflect"
	"testing"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

func TestClone_SharesNothingMutable(t *testing.T) {
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

// Clone supports no arrays of shared values, and no fields that reflection cannot
// set: the model must have none.
func TestClone_EveryTypeOfTheModel(t *testing.T) {
	seen := map[reflect.Type]bool{reflect.TypeFor[topology.CPUSet](): true}
	var look func(path string, of reflect.Type)
	look = func(path string, of reflect.Type) {
		if seen[of] {
			return
		}
		seen[of] = true
		switch of.Kind() {
		case reflect.Struct:
			for f := range of.Fields() {
				if !f.IsExported() && !unshared(f.Type) {
					t.Errorf("%s.%s would be shared and cannot be set", path, f.Name)
				}
				look(path+"."+f.Name, f.Type)
			}
		case reflect.Pointer, reflect.Slice, reflect.Map:
			look(path, of.Elem())
		case reflect.Array:
			if !unshared(of) {
				t.Errorf("%s is an array of what would be shared", path)
			}
		case reflect.Interface:
			if of != reflect.TypeFor[device.Address]() {
				t.Errorf("%s would be shared", path)
			}
		case reflect.Chan, reflect.Func, reflect.UnsafePointer:
			t.Errorf("%s cannot be copied", path)
		}
	}
	look("Definition", reflect.TypeFor[Definition]())
}
