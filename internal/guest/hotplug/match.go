package hotplug

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// checkClash refuses a device if the guest has its target, MAC address or address already.
func checkClash(s *device.Set, dev device.Device) error {
	switch d := dev.(type) {
	case *device.Disk:
		for _, other := range s.Disks {
			if other.Target == d.Target {
				return fault.New(fault.WrongState, fault.Device, "target %s already exists", d.Target)
			}
			meantToShare := d.Shareable && other.Shareable || d.ReadOnly && other.ReadOnly
			if path := d.Source.Path(); path != "" && path == other.Source.Path() && !meantToShare {
				return fault.New(fault.WrongState, fault.Device, "%s is already attached as %s", path, other.Target)
			}
		}
	case *device.NIC:
		for _, other := range s.NICs {
			if d.MAC != "" && other.MAC == d.MAC {
				return fault.New(fault.WrongState, fault.Device, "the domain already has an interface with MAC address %s", d.MAC)
			}
		}
	}
	if at := dev.Common().Address; at != nil {
		for _, other := range s.All() {
			if other.Common().Address == at {
				return fault.New(fault.WrongState, fault.Device, "address %s is taken by the domain's %s %s", at, other.Kind(), other.Common().Alias)
			}
		}
	}
	return nil
}

// updateIn changes the device that dev means to dev, as far as that is possible in place.
func updateIn(s *device.Set, dev device.Device) error {
	old, err := machine.FindMatching(s, dev)
	if err != nil {
		return err
	}
	switch d := dev.(type) {
	case *device.Disk:
		return updateDisk(old.(*device.Disk), d)
	case *device.NIC:
		return updateNIC(old.(*device.NIC), d)
	case *device.Graphics:
		g := old.(*device.Graphics)
		g.Password, g.HasPassword = d.Password, d.HasPassword
		g.PasswordValidTo, g.Connected = d.PasswordValidTo, d.Connected
		return nil
	}
	return fault.New(fault.Unsupported, fault.Config, "cannot update a %s in place; detach it and attach the new one", dev.Kind())
}

func updateDisk(old, d *device.Disk) error {
	if old.Device != "cdrom" && old.Device != "floppy" {
		return fault.New(fault.Unsupported, fault.Config, "cannot update disk %s in place: that is for the medium of CD-ROM and floppy drives; detach it and attach the new one", old.Target)
	}
	if d.Bus != "" && d.Bus != old.Bus {
		return fault.New(fault.Unsupported, fault.Config, "cannot change the bus of disk %s in place", old.Target)
	}
	// Access rules depend on both, because they judge how the medium is used.
	if d.Device != "" && d.Device != old.Device || d.ReadOnly && !old.ReadOnly && old.Device != "cdrom" {
		return fault.New(fault.Unsupported, fault.Config, "cannot change the type of drive %s or make it read-only in place; detach it and attach the new one", old.Target)
	}
	old.Source, old.Format = d.Source, d.Format
	old.Backing, old.BackingSaid = d.Backing, d.BackingSaid
	if d.StartupPolicy != "" {
		old.StartupPolicy = d.StartupPolicy
	}
	return nil
}

func updateNIC(old, d *device.NIC) error {
	switch {
	case d.Model != "" && d.Model != old.Model:
		return fault.New(fault.Unsupported, fault.Config, "cannot modify network device model from %s to %s", old.Model, d.Model)
	case d.Type != old.Type || d.Network != old.Network || d.Bridge != old.Bridge || d.HostDev != old.HostDev:
		return fault.New(fault.Unsupported, fault.Config, "cannot move interface %s to another network in place; detach it and attach it there", old.MAC)
	}
	old.Link = d.Link
	return nil
}
