package provision

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
)

// The range of display ports, as libvirt has it.
const (
	firstPort = 5900
	lastPort  = 65535
)

// TakePort returns the first port on which listen succeeds, with the listening sockets. It holds a port only
// while it tries it.
func TakePort(p *machine.Ports, listen func(port int) ([]*os.File, error)) (int, []*os.File, error) {
	for port := firstPort; port <= lastPort; port++ {
		if !reservePort(p, port) {
			continue
		}
		files, err := listen(port)
		if err == nil {
			return port, files, nil
		}
		GivePortBack(p, port)
		if !errors.Is(err, unix.EADDRINUSE) {
			return 0, nil, err
		}
	}
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return 0, nil, fault.New(fault.NoCapacity, fault.Host, "no port from %d to %d is free for a display (guests hold %d of them); make displays listen on sockets, or shut a guest off",
		firstPort, lastPort, len(p.Held))
}

// reservePort takes a port, and reports whether it was free.
func reservePort(p *machine.Ports, port int) bool {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if p.Held[port] {
		return false
	}
	if p.Held == nil {
		p.Held = map[int]bool{}
	}
	p.Held[port] = true
	return true
}

// GivePortBack frees a port.
func GivePortBack(p *machine.Ports, port int) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	delete(p.Held, port)
}

// ListenAt makes the sockets of a display on those of the addresses that the host has. A name may stand for
// several addresses, and one of them suffices.
func ListenAt(ctx context.Context, addresses []netip.Addr, port int) (files []*os.File, err error) {
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
	CloseAll(slices.Values(files))
	return nil, err
}

// CloseAll closes files to which the daemon wrote nothing. QEMU has its own copies, or none.
func CloseAll(files iter.Seq[*os.File]) {
	for f := range files {
		_ = f.Close()
	}
}
