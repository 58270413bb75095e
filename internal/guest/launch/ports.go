package launch

import (
	"context"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// choosePorts gives every display that listens on the network a port and an address. The default address is
// 127.0.0.1. If QEMU can be passed the sockets, they are made here.
func (l *Launch) choosePorts(ctx context.Context) error {
	for _, g := range l.Instance.Definition.Devices.Graphics {
		if len(g.Listens) == 0 {
			g.Listens = []device.Listen{{Type: "address"}}
		}
		at := &g.Listens[0]
		if at.Type == "socket" || at.Type == "none" {
			continue
		}
		if at.Type == "network" && at.Network != "" {
			var err error
			if at.Address, err = l.Guest.Reg.Networks.DisplayAddress(at.Network); err != nil {
				return err
			}
		}
		if at.Address == "" {
			at.Address = "127.0.0.1"
		}
		if err := l.choosePort(ctx, g, at.Address); err != nil {
			return err
		}
	}
	return nil
}

// choosePort chooses the port of one display, or checks the one in its definition.
func (l *Launch) choosePort(ctx context.Context, g *device.Graphics, address string) error {
	fixed, handed := g.Port > 0 && g.AutoPort != device.On, qemu.DaemonListens(g)
	if fixed && !handed {
		return nil
	}
	addresses, err := qemu.ListenAddresses(ctx, address)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot serve a display on %s", address)
	}
	listen := func(port int) (files []*os.File, err error) {
		err = l.Instance.Labels.Sockets(func() (err error) { files, err = provision.ListenAt(ctx, addresses, port); return err })
		return files, fault.Wrap(err, machine.FailureKind(err), fault.Host, "cannot serve a display on %s", address)
	}
	var files []*os.File
	if fixed {
		if files, err = listen(g.Port); errors.Is(err, unix.EADDRINUSE) {
			return fault.New(fault.Busy, fault.Host, "port %d of %s, requested for the %s display, is in use; choose another port, or any free one (autoport='yes')",
				g.Port, address, g.Type)
		}
	} else if g.Port, files, err = provision.TakePort(&l.Guest.Reg.Ports, listen); err == nil {
		port := g.Port
		l.Instance.PushRelease("display port", func(context.Context) error { provision.GivePortBack(&l.Guest.Reg.Ports, port); return nil })
	}
	if err != nil {
		return err
	}
	if !handed { // it was only tried
		provision.CloseAll(slices.Values(files))
		return nil
	}
	if l.plan.Listeners == nil {
		l.plan.Listeners = map[string][]*os.File{}
	}
	l.plan.Listeners[g.Alias] = files
	return nil
}
