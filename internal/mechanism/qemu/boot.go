package qemu

import (
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// bootOrder holds the boot indexes of devices. If the definition orders kinds of
// device, the first device of each kind gets the index of the kind.
type bootOrder struct{ byDevice map[device.Device]uint }

func newBootOrder(d *domain.Definition) bootOrder {
	o := bootOrder{byDevice: map[device.Device]uint{}}
	for i, kind := range d.OS.BootDevices {
		if dev := firstBootable(&d.Devices, kind); dev != nil {
			o.byDevice[dev] = uint(i + 1)
		}
	}
	return o
}

func firstBootable(s *device.Set, kind string) device.Device {
	if kind == "network" {
		if len(s.NICs) > 0 {
			return s.NICs[0]
		}
		return nil
	}
	for _, d := range s.Disks {
		switch {
		case kind == "hd" && (d.Device == "disk" || d.Device == "lun"),
			kind == "cdrom" && d.Device == "cdrom",
			kind == "fd" && d.Device == "floppy":
			return d
		}
	}
	return nil
}

func (o bootOrder) of(dev device.Device) uint {
	if order := dev.Common().BootOrder; order != 0 {
		return order
	}
	return o.byDevice[dev]
}
