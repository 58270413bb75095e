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

// A VNC display that listens on the host's network does not need a QEMU in that network: the daemon
// listens and passes the sockets. Such a socket alone would be a way out: it belongs to the network
// namespace in which it was made, so a compromised QEMU could disconnect it or a connection that it
// accepted, connect it to any service of the host, or listen on another port with it. So each socket has a
// filter, locked and inherited, that admits only clients of its address and port.

// DaemonListens reports whether the daemon makes the sockets of a display. QEMU itself makes those of
// spice and websockets.
func DaemonListens(g *device.Graphics) bool {
	return g.Type == "vnc" && g.WebSocket == 0 && DisplayHasPort(g)
}

// DisplayHasPort reports whether a display listens on the host's network.
func DisplayHasPort(g *device.Graphics) bool {
	l := listenOf(g)
	return l.Type != "socket" && l.Type != "none"
}

// ListenAddresses returns the addresses that a display listens on: the given one, or all of a host name.
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

// ListenDisplay makes a listening socket for a display; on :: it accepts IPv4 too.
func ListenDisplay(ctx context.Context, at netip.Addr, port int) (*os.File, error) {
	if err := checkVNCPort(port); err != nil {
		return nil, err
	}
	network := "tcp"
	if at.Is4() { // "tcp" would treat 0.0.0.0 as ::, too
		network = "tcp4"
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = filterClients(int(fd), at, uint16(port)) })
		return cmp.Or(failed, err)
	}}
	config.SetMultipathTCP(false) // the filter would not see the subflows
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

// filterClients attaches a filter to a socket, inherited by the sockets that it accepts. The kernel drops
// packets for another port or address, and answers to connections that the socket itself opens. A holder
// of the socket can therefore neither connect it elsewhere nor listen elsewhere with it. The filter is
// locked, so no privilege removes it.
func filterClients(fd int, at netip.Addr, port uint16) error {
	const (
		// Offsets in a TCP header.
		toPort, flags = 2, 13
		// The flags that only the answer to a connection request has both set.
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

// bpfWord is a 32-bit word of a packet: its offset, the mask to apply (0: none) and the expected value.
type bpfWord struct{ at, mask, is uint32 }

// addressWords returns the words of an IP header that contain a destination address; none for the
// unspecified address.
func addressWords(at netip.Addr) []bpfWord {
	const (
		header = 0xfff00000 // the offset where a filter finds the IP header
		kind   = 0xf0000000
	)
	switch text := at.AsSlice(); {
	case at.IsUnspecified():
		return nil
	case at.Is4():
		return []bpfWord{{header, kind, 4 << 28}, {header + 16, 0, binary.BigEndian.Uint32(text)}}
	default:
		words := []bpfWord{{header, kind, 6 << 28}}
		for i := uint32(0); i < 16; i += 4 {
			words = append(words, bpfWord{header + 24 + i, 0, binary.BigEndian.Uint32(text[i:])})
		}
		return words
	}
}

// listenSteps returns the commands that pass a display its listening sockets.
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
