package machine

import (
	"reflect"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// TakeSettings applies to d the settings that differ between of and from. Settings that another client has
// changed in d since are kept.
func TakeSettings(d, of, from *domain.Definition) {
	take(&d.Title, of.Title, from.Title)
	take(&d.Description, of.Description, from.Description)
	take(&d.Metadata, of.Metadata, from.Metadata)
	take(&d.OnPoweroff, of.OnPoweroff, from.OnPoweroff)
	take(&d.OnReboot, of.OnReboot, from.OnReboot)
	take(&d.OnCrash, of.OnCrash, from.OnCrash)
	take(&d.Tune, of.Tune, from.Tune)
	take(&d.NUMA, of.NUMA, from.NUMA)
	take(&d.Blkio, of.Blkio, from.Blkio)
	take(&d.MemTune, of.MemTune, from.MemTune)
	take(&d.CurrentMemory, of.CurrentMemory, from.CurrentMemory)
	d.CurrentMemory = min(d.CurrentMemory, d.Memory)
	take(&d.VCPUs.Current, of.VCPUs.Current, from.VCPUs.Current)
	d.VCPUs.Current = min(d.VCPUs.Current, d.VCPUs.Max)
	for _, f := range from.Devices.All() {
		was, _ := FindLike(&of.Devices, f)
		if now, err := FindLike(&d.Devices, f); err == nil && was != nil { // it may be gone
			takeDevice(now, was, f)
		}
	}
}

// take changes to into from, if it still has the value of.
func take[T any](to *T, of, from T) {
	if reflect.DeepEqual(*to, of) {
		*to = from
	}
}

// takeDevice is TakeSettings for a device. All three must be of one kind.
func takeDevice(d, of, from device.Device) {
	switch d := d.(type) {
	case *device.Disk:
		take(&d.Tune, of.(*device.Disk).Tune, from.(*device.Disk).Tune)
	case *device.NIC:
		of, from := of.(*device.NIC), from.(*device.NIC)
		take(&d.Link, of.Link, from.Link)
		take(&d.Inbound, of.Inbound, from.Inbound)
		take(&d.Outbound, of.Outbound, from.Outbound)
	case *device.Graphics:
		of, from := of.(*device.Graphics), from.(*device.Graphics)
		take(&d.Password, of.Password, from.Password)
		take(&d.HasPassword, of.HasPassword, from.HasPassword)
		take(&d.PasswordValidTo, of.PasswordValidTo, from.PasswordValidTo)
		take(&d.Connected, of.Connected, from.Connected)
	case *device.Balloon:
		take(&d.StatsPeriod, of.(*device.Balloon).StatsPeriod, from.(*device.Balloon).StatsPeriod)
	}
}
