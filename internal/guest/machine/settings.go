package machine

import (
	"reflect"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// MergeSettings applies to d the settings that differ between of and from. Settings that another client has
// changed in d since are kept.
func MergeSettings(d, of, from *domain.Definition) {
	mergeValue(&d.Title, of.Title, from.Title)
	mergeValue(&d.Description, of.Description, from.Description)
	mergeValue(&d.Metadata, of.Metadata, from.Metadata)
	mergeValue(&d.OnPoweroff, of.OnPoweroff, from.OnPoweroff)
	mergeValue(&d.OnReboot, of.OnReboot, from.OnReboot)
	mergeValue(&d.OnCrash, of.OnCrash, from.OnCrash)
	mergeValue(&d.Tune, of.Tune, from.Tune)
	mergeValue(&d.NUMA, of.NUMA, from.NUMA)
	mergeValue(&d.Blkio, of.Blkio, from.Blkio)
	mergeValue(&d.MemTune, of.MemTune, from.MemTune)
	mergeValue(&d.CurrentMemory, of.CurrentMemory, from.CurrentMemory)
	d.CurrentMemory = min(d.CurrentMemory, d.Memory)
	mergeValue(&d.VCPUs.Current, of.VCPUs.Current, from.VCPUs.Current)
	d.VCPUs.Current = min(d.VCPUs.Current, d.VCPUs.Max)
	for _, f := range from.Devices.All() {
		was, _ := FindMatching(&of.Devices, f)
		if now, err := FindMatching(&d.Devices, f); err == nil && was != nil { // it may be gone
			mergeDevice(now, was, f)
		}
	}
}

// mergeValue changes to into from, if it still has the value of.
func mergeValue[T any](to *T, of, from T) {
	if reflect.DeepEqual(*to, of) {
		*to = from
	}
}

// mergeDevice is MergeSettings for a device. All three must be of one kind.
func mergeDevice(d, of, from device.Device) {
	switch d := d.(type) {
	case *device.Disk:
		mergeValue(&d.Tune, of.(*device.Disk).Tune, from.(*device.Disk).Tune)
	case *device.NIC:
		of, from := of.(*device.NIC), from.(*device.NIC)
		mergeValue(&d.Link, of.Link, from.Link)
		mergeValue(&d.Inbound, of.Inbound, from.Inbound)
		mergeValue(&d.Outbound, of.Outbound, from.Outbound)
	case *device.Graphics:
		of, from := of.(*device.Graphics), from.(*device.Graphics)
		mergeValue(&d.Password, of.Password, from.Password)
		mergeValue(&d.HasPassword, of.HasPassword, from.HasPassword)
		mergeValue(&d.PasswordValidTo, of.PasswordValidTo, from.PasswordValidTo)
		mergeValue(&d.Connected, of.Connected, from.Connected)
	case *device.Balloon:
		mergeValue(&d.StatsPeriod, of.(*device.Balloon).StatsPeriod, from.(*device.Balloon).StatsPeriod)
	}
}
