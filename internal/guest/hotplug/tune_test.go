package hotplug

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

func TestChangedLimits(t *testing.T) {
	r := &machine.Registry{Config: machine.Config{Cgroups: kernel.OpenCgroups(kernel.At(t.TempDir()), "")}}
	before := &domain.Definition{
		Tune: domain.CPUTune{Shares: 512, GlobalQuota: 50000}, MemTune: domain.MemTune{HardLimit: 1 << 30, SoftLimit: 1 << 20},
	}
	after := before.Clone()
	after.Tune.Shares, after.Tune.GlobalQuota = 1024, 0
	after.MemTune.HardLimit = 0
	after.Blkio.Weight = 300
	got := changedLimits(r, provision.Limits(before), provision.Limits(after))
	want := func(name string, is *uint64, wanted uint64) {
		t.Helper()
		if is == nil || *is != wanted {
			t.Errorf("%s becomes %v, want %d", name, is, wanted)
		}
	}
	want("the weight", got.CPUShares, 1024)
	want("a quota that was taken away", got.CPUQuota, kernel.Unlimited)
	want("a limit that was taken away", got.MemoryHard, kernel.Unlimited)
	want("the disks' weight", got.BlockWeight, 300)
	if got.MemorySoft != nil || got.CPUPeriod != nil || got.MemorySwap != nil {
		t.Errorf("limits that are as before are set again: %+v", got)
	}
}

func TestChangedSettings_Names(t *testing.T) {
	disk := &device.Disk{Info: device.Info{Alias: "virtio-disk0"}, Target: "vda"}
	before := &domain.Definition{Devices: device.Set{Disks: []*device.Disk{disk}}}
	after := before.Clone()
	after.Tune.Quota, after.Tune.Shares = -1, 7
	got := changedSettings(before, after)
	want := []event.Setting{{Name: "cputune.cpu_shares", Value: uint64(7)}, {Name: "cputune.vcpu_quota", Value: int64(-1)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	after = before.Clone()
	after.Devices.Disks[0].Tune = &device.IOTune{ReadIOPS: 9, Group: "slow"}
	said := map[string]any{}
	for _, s := range changedSettings(before, after) {
		said[s.Name] = s.Value
	}
	if said["blkdeviotune.disk"] != "virtio-disk0" || said["blkdeviotune.read_iops_sec"] != uint64(9) || said["blkdeviotune.group_name"] != "slow" {
		t.Errorf("the disk's new bounds are told as %v", said)
	}
}

func TestFindMatching_Names(t *testing.T) {
	at := func(slot uint) device.Info { return device.Info{Address: device.PCI{Bus: slot}} }
	set := &device.Set{
		Disks: []*device.Disk{{Info: at(1), Target: "vda"}, {Info: at(2), Target: "vdb"}},
		NICs:  []*device.NIC{{Info: at(3), MAC: "52:54:00:00:00:01"}, {Info: at(4), MAC: "52:54:00:00:00:01"}, {Info: at(5), MAC: "52:54:00:00:00:02"}},
		RNGs:  []*device.RNG{{Info: at(6), Backend: "random", Path: "/dev/random"}, {Info: at(7), Backend: "random", Path: "/dev/urandom"}},
	}
	for name, c := range map[string]struct {
		like  device.Device
		want  device.Device
		fails fault.Kind
	}{
		"a disk by its target":                          {like: &device.Disk{Target: "vdb"}, want: set.Disks[1]},
		"a disk whose address is another in the config": {like: &device.Disk{Info: at(9), Target: "vda"}, want: set.Disks[0]},
		"no disk":                             {like: &device.Disk{Target: "vdc"}, fails: fault.NotFound},
		"an interface, wherever it sits":      {like: &device.NIC{Info: at(9), MAC: "52:54:00:00:00:02"}, want: set.NICs[2]},
		"one of two of the same MAC":          {like: &device.NIC{Info: at(4), MAC: "52:54:00:00:00:01"}, want: set.NICs[1]},
		"two of the same MAC":                 {like: &device.NIC{MAC: "52:54:00:00:00:01"}, fails: fault.Invalid},
		"an RNG by its source":                {like: &device.RNG{Backend: "random", Path: "/dev/urandom"}, want: set.RNGs[1]},
		"an RNG that is somewhere else":       {like: &device.RNG{Info: at(9), Backend: "random", Path: "/dev/urandom"}, fails: fault.NotFound},
		"an RNG that is not said well enough": {like: &device.RNG{Backend: "random"}, fails: fault.Invalid},
		"an RNG that its address tells apart": {like: &device.RNG{Info: at(6), Backend: "random"}, want: set.RNGs[0]},
	} {
		got, err := machine.FindMatching(set, c.like)
		if c.want == nil {
			if !fault.Is(err, c.fails) {
				t.Errorf("%s: %v, want %v", name, err, c.fails)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: found %v, %v", name, got, err)
		}
	}
}

func TestTargetName_AgentDisk(t *testing.T) {
	def := &domain.Definition{Devices: device.Set{Disks: []*device.Disk{
		{Info: device.Info{Address: device.PCI{Bus: 4}}, Target: "vda", Bus: "virtio"},
		{Info: device.Info{Address: device.Drive{Target: 2, Unit: 1}}, Target: "sda", Bus: "scsi"},
	}}}
	virtio, scsi, other := provision.AgentDisk{BusType: "virtio"}, provision.AgentDisk{BusType: "SCSI", Target: 2, Unit: 1}, provision.AgentDisk{BusType: "usb", Target: 2, Unit: 1}
	virtio.PCI.Bus, scsi.PCI.Bus, other.PCI.Bus = 4, -1, -1
	for _, c := range []struct {
		disk provision.AgentDisk
		want string
	}{{virtio, "vda"}, {scsi, "sda"}, {other, ""}} {
		if got := c.disk.TargetName(def); got != c.want {
			t.Errorf("%+v is disk %q, want %q", c.disk, got, c.want)
		}
		if got := c.disk.TargetName(nil); got != "" { // of a guest that has left
			t.Errorf("%+v is disk %q of no guest", c.disk, got)
		}
	}
}

// Promise: X10
func TestPrintable(t *testing.T) {
	if got := provision.Printable("a\x00b\xff\x1b\u009b\n"); got != "ab?" {
		t.Errorf("got %q", got)
	}
	if got := provision.Printable(strings.Repeat("x", 1<<20)); len(got) != provision.MaxPrintable {
		t.Errorf("%d bytes are passed on", len(got))
	}
}
