package guest

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// findLike finds the device that a document means: by its alias if the document has one, otherwise by what
// identifies a device of that kind.
func findLike(s *device.Set, like device.Device) (device.Device, error) {
	if alias := like.Common().Alias; alias != "" {
		if d := s.ByAlias(alias); d != nil && d.Kind() == like.Kind() {
			return d, nil
		}
	}
	var found []device.Device
	for _, d := range s.All() {
		if same(d, like) {
			found = append(found, d)
		}
	}
	if at := like.Common().Address; at != nil && (len(found) > 1 || !named(like)) {
		found = slices.DeleteFunc(found, func(d device.Device) bool { return !sameAddress(at, d.Common().Address) })
	}
	if _, alike := like.(*device.Memory); alike && len(found) > 1 {
		return found[0], nil // as libvirt does: equal modules are interchangeable
	}
	switch len(found) {
	case 0:
		return nil, fault.New(fault.NotFound, fault.Device, "no %s of the domain matches %s", like.Kind(), identity(like))
	case 1:
		return found[0], nil
	}
	return nil, fault.New(fault.Invalid, fault.Device, "more than one %s of the domain matches; name its alias or address", like.Kind())
}

// named reports whether a device is identified by a name, such as a target or MAC address. The name is the
// same in the live and the stored definition, while addresses may differ.
func named(d device.Device) bool {
	switch d := d.(type) {
	case *device.Disk, *device.Controller:
		return true
	case *device.NIC:
		return d.MAC != ""
	case *device.Char:
		return d.Name != "" || d.PortSaid
	}
	return false
}

// same reports whether the document like means device d.
func same(d, like device.Device) bool {
	if d.Kind() != like.Kind() {
		return false
	}
	switch l := like.(type) {
	case *device.Disk:
		return l.Target == d.(*device.Disk).Target
	case *device.NIC:
		return l.MAC == "" || l.MAC == d.(*device.NIC).MAC
	case *device.Char:
		c := d.(*device.Char)
		switch {
		case l.Name != "":
			return l.Name == c.Name
		case l.PortSaid:
			return l.Port == c.Port
		}
		return l.Backend.Type == c.Backend.Type && (l.Backend.Path == "" || l.Backend.Path == c.Backend.Path)
	case *device.Controller:
		c := d.(*device.Controller)
		return l.Type == c.Type && l.Index == c.Index
	case *device.HostDevice:
		h := d.(*device.HostDevice)
		if l.USBBus != 0 || l.USBDevice != 0 {
			return l.Type == h.Type && l.USBBus == h.USBBus && l.USBDevice == h.USBDevice
		}
		return l.Type == h.Type && l.PCI == h.PCI && l.USBVendor == h.USBVendor && l.USBProduct == h.USBProduct
	case *device.Graphics:
		return l.Type == d.(*device.Graphics).Type
	case *device.Input:
		i := d.(*device.Input)
		return l.Type == i.Type && l.Bus == i.Bus
	case *device.Watchdog:
		return l.Model == d.(*device.Watchdog).Model
	case *device.RNG:
		r := d.(*device.RNG)
		return l.Backend == r.Backend && (l.Path == "" || l.Path == r.Path)
	case *device.Redir:
		return l.Bus == d.(*device.Redir).Bus
	case *device.Memory:
		m := d.(*device.Memory)
		return l.Model == m.Model && l.WholeSize() == m.Size && l.Cell == m.Cell && l.PageSize == m.PageSize && l.Nodes.Equal(m.Nodes)
	}
	return true // a guest has only one of each other kind
}

// sameAddress compares the parts of an address that a user may specify.
func sameAddress(a, b device.Address) bool {
	pa, ok := a.(device.PCI)
	pb, ok2 := b.(device.PCI)
	if ok && ok2 { // whether others share the slot identifies no device
		pa.Multifunction, pb.Multifunction = device.Unset, device.Unset
		return pa == pb
	}
	if da, ok := a.(device.DIMM); ok && da.Base == 0 { // the user need not name the address that QEMU chose
		db, ok := b.(device.DIMM)
		return ok && da.Slot == db.Slot
	}
	return a == b
}

// identity describes for messages which device a document means.
func identity(d device.Device) string {
	switch d := d.(type) {
	case *device.Disk:
		return "target " + d.Target
	case *device.NIC:
		return "MAC address " + d.MAC
	}
	if a := d.Common().Address; a != nil {
		return "address " + a.String()
	}
	return "what was given"
}

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
	old, err := findLike(s, dev)
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
