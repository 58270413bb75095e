package qemu

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// displayAt listens for a display at a free port, and returns the socket that QEMU would get.
func displayAt(t *testing.T, address string) (f *os.File, port int) {
	t.Helper()
	for port = firstVNC + 1000; port < 65535; port++ {
		f, err := ListenDisplay(t.Context(), netip.MustParseAddr(address), port)
		switch {
		case errors.Is(err, unix.EADDRINUSE):
			continue
		case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
			t.Skipf("this host has no %s: %v", address, err)
		case err != nil:
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f, port
	}
	t.Fatal("no port is free")
	return nil, 0
}

// accepts waits for a client of a listening socket, and accepts it.
func accepts(t *testing.T, f *os.File) net.Conn {
	t.Helper()
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func dials(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{Timeout: time.Minute}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// abuse disconnects a socket and connects it to a service. Both ends are on this host, so the
// handshake has succeeded or failed when it returns.
func abuse(t *testing.T, fd uintptr, service netip.AddrPort) {
	t.Helper()
	disconnect(t, fd)
	calls(t, int(fd), service)
}

// disconnect makes a socket neither connected nor bound, and removes its filter if that is possible.
func disconnect(t *testing.T, fd uintptr) {
	t.Helper()
	_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 0)
	_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	var nobody [16]byte // its address family AF_UNSPEC disconnects
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&nobody)), uintptr(len(nobody))); errno != 0 {
		t.Fatal("it cannot be disconnected: ", errno)
	}
}

func calls(t *testing.T, fd int, service netip.AddrPort) {
	t.Helper()
	_ = unix.SetNonblock(fd, true)
	if err := unix.Connect(fd, socketAddress(service)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal("it cannot call: ", err)
	}
}

func socketAddress(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
	}
	return &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())}
}

// TestListenDisplay_SocketCannotListenElsewhere: a socket that the display accepted can be made to listen
// on all addresses of the host. It then accepts only clients that connect to the display's own address.
// Promise: I1
func TestListenDisplay_SocketCannotListenElsewhere(t *testing.T) {
	for _, c := range []struct{ display, all, other string }{{"127.0.0.1", "0.0.0.0", "127.0.0.2"}, {"::1", "::", "127.0.0.1"}, {"0.0.0.0", "0.0.0.0", "127.0.0.2"}} {
		listening, port := displayAt(t, c.display)
		at := netip.AddrPortFrom(netip.MustParseAddr(c.display), uint16(port))
		client := dials(t, at.String())
		accepted, err := accepts(t, listening).(*net.TCPConn).File()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = client.Close(), listening.Close()
		disconnect(t, accepted.Fd())
		fd := int(accepted.Fd())
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		if err := unix.Bind(fd, socketAddress(netip.AddrPortFrom(netip.MustParseAddr(c.all), uint16(port)))); err != nil {
			t.Fatal(err)
		}
		if err := unix.Listen(fd, 8); err != nil {
			t.Fatal(err)
		}
		stranger, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		calls(t, stranger, netip.AddrPortFrom(netip.MustParseAddr(c.other), uint16(port)))
		other := dials(t, at.String())
		first := accepts(t, accepted)
		if kept := c.display != c.all; kept != (first.RemoteAddr().String() == other.LocalAddr().String()) {
			t.Errorf("one for %s that listens on %s is told who calls %s first; kept from that it is to be: %v", c.display, c.all, c.other, kept)
		}
		_, _, _ = first.Close(), accepted.Close(), unix.Close(stranger)
	}
}

// TestListenDisplay_SocketCannotConnect: a process that has the socket of a display, or one that it
// accepted, can serve clients with it, but cannot connect to a service of the host. With an ordinary
// socket it can.
// Promise: I1
func TestListenDisplay_SocketCannotConnect(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		for _, kept := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s kept=%v", address, kept), func(t *testing.T) { testLeads(t, address, kept) })
		}
	}
}

func testLeads(t *testing.T, address string, kept bool) {
	display, port := displayAt(t, address)
	at := net.JoinHostPort(address, fmt.Sprint(port))
	if !kept {
		_ = display.Close()
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		display, err = l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		t.Cleanup(func() { _ = display.Close() })
	}
	client := dials(t, at)
	accepted := accepts(t, display)
	t.Cleanup(func() { _ = accepted.Close() })
	for _, way := range [][2]net.Conn{{client, accepted}, {accepted, client}} {
		said := make([]byte, 3)
		if _, err := way[0].Write([]byte("RFB")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(way[1], said); err != nil || string(said) != "RFB" {
			t.Fatalf("a client and its display say %q, %v", said, err)
		}
	}
	_ = client.Close()
	handed, err := accepted.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = handed.Close() })
	for name, f := range map[string]*os.File{"what listens": display, "what was accepted": handed} {
		service, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			t.Fatal(err)
		}
		abuse(t, f.Fd(), netip.MustParseAddrPort(service.Addr().String()))
		other := dials(t, service.Addr().String())
		first, err := service.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if kept != (first.RemoteAddr().String() == other.LocalAddr().String()) {
			t.Errorf("%s reaches a service of the host's: %v", name, kept)
		}
		_, _ = first.Close(), service.Close()
	}
}
