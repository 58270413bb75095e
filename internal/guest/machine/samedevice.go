package machine

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// FindMatching finds the device that a document means: by its alias if the document has one, otherwise by what
// identifies a device of that kind.
func FindMatching(s *device.Set, like device.Device) (device.Device, error) {
	if alias := like.Common().Alias; alias != "" {
		if d := s.ByAlias(alias); d != nil && d.Kind() == like.Kind() {
			return d, nil
		}
	}
	var found []device.Device
	for _, d := range s.All() {
		if matches(d, like) {
			found = append(found, d)
		}
	}
	if at := like.Common().Address; at != nil && (len(found) > 1 || !isNamed(like)) {
		found = slices.DeleteFunc(found, func(d device.Device) bool { return !sameAddress(at, d.Common().Address) })
	}
	if _, alike := like.(*device.Memory); alike && len(found) > 1 {
		return found[0], nil // as libvirt does: equal modules are interchangeable
	}
	switch len(found) {
	case 0:
		return nil, fault.New(fault.NotFound, fault.Device, "no %s of the domain matches %s", like.Kind(), describeIdentity(like))
	case 1:
		return found[0], nil
	}
	return nil, fault.New(fault.Invalid, fault.Device, "more than one %s of the domain matches; name its alias or address", like.Kind())
}

// isNamed reports whether a device is identified by a name, such as a target or MAC address. The name is the
// same in the live and the stored definition, while addresses may differ.
func isNamed(d device.Device) bool {
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

// matches reports whether the document like means device d.
func matches(d, like device.Device) bool {
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

// describeIdentity describes for messages which device a document means.
func describeIdentity(d device.Device) string {
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
