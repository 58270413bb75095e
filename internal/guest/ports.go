package guest

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// ports are the display ports that guests of this daemon hold. Ports of other programs are found by trying
// to listen.
type ports struct {
	mu   sync.Mutex
	held map[int]bool
}

// The range of display ports, as libvirt has it.
const (
	firstPort = 5900
	lastPort  = 65535
)

// take returns the first port on which listen succeeds, with the listening sockets. It holds a port only
// while it tries it.
func (p *ports) take(listen func(port int) ([]*os.File, error)) (int, []*os.File, error) {
	for port := firstPort; port <= lastPort; port++ {
		if !p.hold(port) {
			continue
		}
		files, err := listen(port)
		if err == nil {
			return port, files, nil
		}
		p.giveBack(port)
		if !errors.Is(err, unix.EADDRINUSE) {
			return 0, nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return 0, nil, fault.New(fault.NoCapacity, fault.Host, "no port from %d to %d is free for a display (guests hold %d of them); make displays listen on sockets, or shut a guest off",
		firstPort, lastPort, len(p.held))
}

// hold takes a port, and reports whether it was free.
func (p *ports) hold(port int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[port] {
		return false
	}
	if p.held == nil {
		p.held = map[int]bool{}
	}
	p.held[port] = true
	return true
}

func (p *ports) giveBack(port int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.held, port)
}

// choosePorts gives every display that listens on the network a port and an address. The default address is
// 127.0.0.1. If QEMU can be passed the sockets, they are made here.
func (l *launching) choosePorts(ctx context.Context) error {
	for _, g := range l.run.def.Devices.Graphics {
		if len(g.Listens) == 0 {
			g.Listens = []device.Listen{{Type: "address"}}
		}
		at := &g.Listens[0]
		if at.Type == "socket" || at.Type == "none" {
			continue
		}
		if at.Type == "network" && at.Network != "" {
			var err error
			if at.Address, err = l.g.reg.Networks.DisplayAddress(at.Network); err != nil {
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
func (l *launching) choosePort(ctx context.Context, g *device.Graphics, address string) error {
	fixed, handed := g.Port > 0 && g.AutoPort != device.On, qemu.DisplayIsHanded(g)
	if fixed && !handed {
		return nil
	}
	addresses, err := qemu.AddressesOf(ctx, address)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot serve a display on %s", address)
	}
	listen := func(port int) (files []*os.File, err error) {
		err = l.run.labels.sockets(func() (err error) { files, err = listenAt(ctx, addresses, port); return err })
		return files, fault.Wrap(err, failure(err), fault.Host, "cannot serve a display on %s", address)
	}
	var files []*os.File
	if fixed {
		if files, err = listen(g.Port); errors.Is(err, unix.EADDRINUSE) {
			return fault.New(fault.Busy, fault.Host, "port %d of %s, requested for the %s display, is in use; choose another port, or any free one (autoport='yes')",
				g.Port, address, g.Type)
		}
	} else if g.Port, files, err = l.g.reg.ports.take(listen); err == nil {
		port := g.Port
		l.run.hold("display port", func(context.Context) error { l.g.reg.ports.giveBack(port); return nil })
	}
	if err != nil {
		return err
	}
	if !handed { // it was only tried
		closeAll(slices.Values(files))
		return nil
	}
	if l.plan.Listeners == nil {
		l.plan.Listeners = map[string][]*os.File{}
	}
	l.plan.Listeners[g.Alias] = files
	return nil
}

// listenAt makes the sockets of a display on those of the addresses that the host has. A name may stand for
// several addresses, and one of them suffices.
func listenAt(ctx context.Context, addresses []netip.Addr, port int) (files []*os.File, err error) {
	var failed []error
	for _, address := range addresses {
		f, err := qemu.ListenDisplay(ctx, address, port)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		files = append(files, f)
	}
	err = errors.Join(failed...)
	if len(files) > 0 && !errors.Is(err, unix.EADDRINUSE) {
		return files, nil
	}
	closeAll(slices.Values(files))
	return nil, err
}

// closeAll closes files to which the daemon wrote nothing. QEMU has its own copies, or none.
func closeAll(files iter.Seq[*os.File]) {
	for f := range files {
		_ = f.Close()
	}
}
