package qemu

import (
	"cmp"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// A VNC display that listens on the host's network is no reason to have a QEMU in it: the
// daemon listens there, and hands over the sockets. By themselves those would lead back: a
// socket belongs to the network in which it was made, and whoever has one that listens, or
// what it has accepted, can disconnect it, and connect it to any service of the host's, or listen
// with it where the host is reached from elsewhere. So each has a filter, locked and inherited,
// that lets clients of its address and port in and nothing else.

// DaemonListens reports whether the sockets of a display are made by the daemon. Those of
// spice and websockets QEMU makes by itself.
func DaemonListens(g *device.Graphics) bool {
	return g.Type == "vnc" && g.WebSocket == 0 && DisplayHasPort(g)
}

// DisplayHasPort reports whether a display listens on the host's network.
func DisplayHasPort(g *device.Graphics) bool {
	l := listenOf(g)
	return l.Type != "socket" && l.Type != "none"
}

// ListenAddresses are those that a display listens on: one that is said, or all of a name.
func ListenAddresses(ctx context.Context, name string) ([]netip.Addr, error) {
	if address, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{address.Unmap()}, nil
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	for i := range all {
		all[i] = all[i].Unmap()
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), err
}

// ListenDisplay makes a socket on which a display listens; on :: that is IPv4, too.
func ListenDisplay(ctx context.Context, at netip.Addr, port int) (*os.File, error) {
	if err := checkVNCPort(port); err != nil {
		return nil, err
	}
	network := "tcp"
	if at.Is4() { // "tcp" would take 0.0.0.0 for ::, too
		network = "tcp4"
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = filterClients(int(fd), at, uint16(port)) })
		return cmp.Or(failed, err)
	}}
	config.SetMultipathTCP(false) // whose parts the filter would not see
	l, err := config.Listen(ctx, network, net.JoinHostPort(at.String(), strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // the file is a copy
	return l.(*net.TCPListener).File()
}

func checkVNCPort(port int) error {
	if port < firstVNC || port > 65535 {
		return invalid("a VNC display needs a port from %d to 65535, not %d", firstVNC, port)
	}
	return nil
}

// filterClients has the kernel drop what comes to a socket, and to those that it
// accepts, for another port or address than its own, and answers to what it has called itself:
// who has it connects it nowhere, and listens nowhere else. No privilege takes that back.
func filterClients(fd int, at netip.Addr, port uint16) error {
	const (
		// Where a TCP header has them.
		toPort, flags = 2, 13
		// Both are set in the answer to a call alone.
		synAck = 0x02 | 0x10
		whole  = 0xffffffff
	)
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: toPort},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: uint32(port)},
		drop,
	}
	for _, part := range addressWords(at) {
		program = append(program, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: part.at})
		if part.mask != 0 {
			program = append(program, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: part.mask})
		}
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: part.is}, drop)
	}
	program = append(program,
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: flags},
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: synAck},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: synAck},
		drop,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: whole})
	err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1)
	}
	return os.NewSyscallError("setsockopt", err)
}

// word is one of a packet, with what of it is looked at (0: all) and what that is.
type word struct{ at, mask, is uint32 }

// addressWords are the words of a packet's IP header that say that it is for an address; none of
// the one that stands for all.
func addressWords(at netip.Addr) []word {
	const (
		header = 0xfff00000 // where the kernel has it for filters
		kind   = 0xf0000000
	)
	switch text := at.AsSlice(); {
	case at.IsUnspecified():
		return nil
	case at.Is4():
		return []word{{header, kind, 4 << 28}, {header + 16, 0, binary.BigEndian.Uint32(text)}}
	default:
		words := []word{{header, kind, 6 << 28}}
		for i := uint32(0); i < 16; i += 4 {
			words = append(words, word{header + 24 + i, 0, binary.BigEndian.Uint32(text[i:])})
		}
		return words
	}
}

// listenSteps gives the steps by which a display takes the sockets that it listens on.
func listenSteps(files []*os.File) []Step {
	if len(files) == 0 {
		return nil
	}
	var steps []Step
	var addresses []properties
	for i, f := range files {
		name := "lodge-listener-" + strconv.Itoa(i)
		steps = append(steps, Step{Command: "getfd", Args: properties{{"fdname", name}}, File: f})
		addresses = append(addresses, properties{{"type", "fd"}, {"str", name}})
	}
	return append(steps, Step{Command: "display-update", Args: properties{{"type", "vnc"}, {"addresses", addresses}}})
}
