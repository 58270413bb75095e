package hotplug

import (
	"context"
	"errors"
	"fmt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/console"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Attach adds a device, given as libvirt's device XML.
func Attach(ctx context.Context, g *machine.Guest, sc scope.Scope, doc string, a machine.Affect) error {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{Submitted: true})
	if err != nil {
		return err
	}
	return edit(ctx, g, sc, a, func() (*domain.Definition, error) {
		return withDevice(g, dev)
	}, func(config *domain.Definition) (machine.Work, error) {
		return planAttach(g, sc, doc, config, dev)
	})
}

// withDevice returns the inactive definition with one more device.
func withDevice(g *machine.Guest, dev device.Device) (*domain.Definition, error) {
	def := g.Inactive.Clone()
	if err := checkClash(&def.Devices, dev); err != nil {
		return nil, err
	}
	caps, err := g.Reg.Emulators.Known(def.Devices.Emulator)
	if err != nil {
		return nil, err
	}
	if err := completeDevice(def, dev, caps, false); err != nil {
		return nil, err
	}
	return def, def.Add(dev)
}

// completeDevice completes a device that is added to a definition: its defaults, and its address among the
// others.
func completeDevice(def *domain.Definition, dev device.Device, caps *qemucaps.Capabilities, live bool) error {
	if err := domainxml.CompleteDevice(dev, def.OS.Machine, machine.HostDefaults(caps)); err != nil {
		return err
	}
	if err := def.CheckDevice(dev); err != nil {
		return err
	}
	if dev.Common().BootOrder > 0 {
		with := def.Clone()
		err := with.Add(dev)
		if err == nil {
			_, err = domainxml.CheckBoot(with)
		}
		if err != nil {
			return err
		}
	}
	return qemu.CompleteDevice(def, dev, caps, live)
}

// planAttach plans to attach a device to the running guest. It parses the document again, so that the running
// and the stored device share only the MAC address that was generated for a NIC.
func planAttach(g *machine.Guest, sc scope.Scope, doc string, config *domain.Definition, stored device.Device) (machine.Work, error) {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{Submitted: true})
	if err != nil {
		return nil, err
	}
	if err := provision.SetDevicePathLimits(g, sc, dev); err != nil {
		return nil, err
	}
	if n, ok := dev.(*device.NIC); ok {
		n.MAC = stored.(*device.NIC).MAC
		if err := g.Reg.Networks.CheckSource(n); err != nil { // report this before an address is chosen
			return nil, err
		}
	}
	r := g.Instance
	def := r.Definition.Clone()
	if err := checkClash(&def.Devices, dev); err != nil {
		return nil, err
	}
	caps, err := g.Reg.Emulators.Known(def.Devices.Emulator)
	if err != nil {
		return nil, err
	}
	first, err := planControllers(def, dev, caps)
	if err != nil {
		return nil, err
	}
	if err := completeDevice(def, dev, caps, true); err != nil {
		return nil, err
	}
	assignNode(r, def, dev)
	if err := admitAttach(g, sc, def, dev); err != nil {
		return nil, err
	}
	if err := checkTakesPCI(def, dev); err != nil {
		return nil, err
	}
	if config == nil {
		stored = nil
	}
	if provision.HasNodes(g.Reg, dev) { // the list of permitted nodes is made again, whatever the outcome
		r.Surplus = true
		g.WriteInstance()
	}
	p := &qemu.Plan{Definition: def, Capabilities: caps, Dir: provision.OwnPath(r)}
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		// A controller stays if the device that needs it is refused, as with libvirt.
		for _, c := range first {
			if err := attachDevice(ctx, g, sc, r, p, c, nil); err != nil {
				return nil, err
			}
		}
		err := attachDevice(ctx, g, sc, r, p, dev, stored)
		return func() error { r.DropNodes = r.Surplus; return nil }, err
	}, nil
}

// checkTakesPCI refuses a PCI device if the running guest would not be notified of it.
func checkTakesPCI(def *domain.Definition, dev device.Device) error {
	if _, isPCI := dev.Common().Address.(device.PCI); !isPCI || qemu.TakesPCI(def) {
		return nil
	}
	return fault.New(fault.Unsupported, fault.Config,
		"cannot attach %s: a guest of machine type pc accepts PCI devices only with <acpi/> among its features; add that to the config, and start it again", machine.DeviceName(dev))
}

// planControllers returns the controllers that a device needs and a running guest lacks, completed, and
// adds them to def. They are attached before the device.
func planControllers(def *domain.Definition, dev device.Device, caps *qemucaps.Capabilities) ([]*device.Controller, error) {
	d, is := dev.(*device.Disk)
	if !is || d.Bus != "scsi" && d.Bus != "" {
		return nil, nil
	}
	if err := domainxml.CompleteDevice(dev, def.OS.Machine, machine.HostDefaults(caps)); err != nil || d.Bus != "scsi" {
		return nil, err
	}
	missing, err := def.Devices.MissingControllers(d, true)
	for _, c := range missing {
		if err := completeDevice(def, c, caps, true); err != nil {
			return nil, fmt.Errorf("the disk needs a SCSI controller %d, which cannot be attached: %w", c.Index, err)
		}
		if err := checkTakesPCI(def, c); err != nil {
			return nil, err
		}
		if err := def.Add(c); err != nil {
			return nil, err
		}
	}
	return missing, err
}

// admitAttach refuses a device that exceeds the client's quota, or with which no later daemon could read the
// definition.
func admitAttach(g *machine.Guest, sc scope.Scope, def *domain.Definition, dev device.Device) error {
	with := def.Clone()
	err := with.Add(dev)
	if err == nil {
		err = g.ReserveQuota(sc, with)
	}
	if err == nil {
		_, err = g.Instance.FormatForRecord(with)
	}
	return err
}

// assignNode gives a disk's block node a number that this instance has not used: QEMU may still use the node of
// a disk that the guest has released.
func assignNode(r *machine.Instance, def *domain.Definition, dev device.Device) {
	for _, d := range def.Devices.Disks {
		reserveNode(r, d)
	}
	if d, ok := dev.(*device.Disk); ok && d.Source != nil {
		d.Source.Index = r.Nodes.Next()
	}
}

// reserveNode reserves the number of a disk in an operation's record. Its daemon may not have recorded the
// number elsewhere, and QEMU may still have the node.
func reserveNode(r *machine.Instance, dev device.Device) {
	if d, ok := dev.(*device.Disk); ok {
		r.Nodes.Note(d)
	}
}

// applyAfterAttach sends QEMU the settings, or asks it for the values, that cannot be part of device_add.
// After a start this is done for all devices.
func applyAfterAttach(ctx context.Context, s *qmp.Session, dev device.Device) error {
	switch d := dev.(type) {
	case *device.Disk:
		if d.Tune != nil {
			return machine.Execute(ctx, s, qemu.Throttle(d))
		}
	case *device.Memory:
		return provision.FindModules(ctx, s, []*device.Memory{d})
	case *device.Char:
		if d.Backend.Type == "pty" {
			ptys, err := console.FindPTYs(ctx, s)
			console.SetPTY(d, ptys)
			return err
		}
	case *device.NIC:
		if d.Link == "down" {
			return s.Execute(ctx, "set_link", map[string]any{"name": d.Alias, "up": false}, nil)
		}
	}
	return nil
}

// IsEffectUnknown reports whether the effect of a command is unknown.
func IsEffectUnknown(err error) bool {
	var refused *qmp.Error
	return err != nil && !errors.As(err, &refused)
}
