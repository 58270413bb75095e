package device

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Add puts a device into its group: disks and controllers where libvirt has them, others at the end. Of
// balloons and vsocks a guest has at most one.
func (s *Set) Add(d Device) error {
	switch d := d.(type) {
	case *Disk:
		s.Disks = insert(s.Disks, d, diskFollows)
	case *Controller:
		s.Controllers = insert(s.Controllers, d, controllerFollows)
	case *NIC:
		s.NICs = append(s.NICs, d)
	case *Char:
		group := s.chars(d.Role)
		*group = append(*group, d)
	case *Input:
		s.Inputs = append(s.Inputs, d)
	case *TPM:
		s.TPMs = append(s.TPMs, d)
	case *Graphics:
		s.Graphics = append(s.Graphics, d)
	case *Sound:
		s.Sounds = append(s.Sounds, d)
	case *Audio:
		s.Audios = append(s.Audios, d)
	case *Video:
		s.Videos = append(s.Videos, d)
	case *HostDevice:
		s.HostDevices = append(s.HostDevices, d)
	case *Redir:
		s.Redirs = append(s.Redirs, d)
	case *Hub:
		s.Hubs = append(s.Hubs, d)
	case *Watchdog:
		s.Watchdogs = append(s.Watchdogs, d)
	case *RNG:
		s.RNGs = append(s.RNGs, d)
	case *Panic:
		s.Panics = append(s.Panics, d)
	case *Memory:
		s.Memories = append(s.Memories, d)
	case *Balloon:
		if s.Balloon != nil && s.Balloon.Model != "none" {
			return onlyOne(d)
		}
		s.Balloon = d
	case *VSock:
		if s.VSock != nil {
			return onlyOne(d)
		}
		s.VSock = d
	}
	return nil
}

func onlyOne(d Device) error {
	return fault.New(fault.WrongState, fault.Device, "the domain has a %s already, and can have only one", d.Kind())
}

// Remove takes out the very device d, by identity; one that is not there is no
// error.
func (s *Set) Remove(d Device) {
	switch d := d.(type) {
	case *Disk:
		s.Disks = without(s.Disks, d)
	case *Controller:
		s.Controllers = without(s.Controllers, d)
	case *NIC:
		s.NICs = without(s.NICs, d)
	case *Char:
		group := s.chars(d.Role)
		*group = without(*group, d)
	case *Input:
		s.Inputs = without(s.Inputs, d)
	case *TPM:
		s.TPMs = without(s.TPMs, d)
	case *Graphics:
		s.Graphics = without(s.Graphics, d)
	case *Sound:
		s.Sounds = without(s.Sounds, d)
	case *Audio:
		s.Audios = without(s.Audios, d)
	case *Video:
		s.Videos = without(s.Videos, d)
	case *HostDevice:
		s.HostDevices = without(s.HostDevices, d)
	case *Redir:
		s.Redirs = without(s.Redirs, d)
	case *Hub:
		s.Hubs = without(s.Hubs, d)
	case *Watchdog:
		s.Watchdogs = without(s.Watchdogs, d)
	case *RNG:
		s.RNGs = without(s.RNGs, d)
	case *Panic:
		s.Panics = without(s.Panics, d)
	case *Memory:
		s.Memories = without(s.Memories, d)
	case *Balloon:
		s.Balloon = nil
	case *VSock:
		s.VSock = nil
	}
}

// without returns the group less one member, leaving the original as it was.
func without[D comparable](group []D, d D) []D {
	return slices.DeleteFunc(slices.Clone(group), func(other D) bool { return other == d })
}

func (s *Set) chars(r CharRole) *[]*Char {
	switch r {
	case Serial:
		return &s.Serials
	case Parallel:
		return &s.Parallels
	case Console:
		return &s.Consoles
	case Channel:
		return &s.Channels
	}
	return &s.Channels
}
