// Package pair makes connections within this host. One end is given away: to a program,
// or to what stands for one in a test.
package pair

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// New gives the two ends of a connection. Both are the caller's to close.
func New() (near net.Conn, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "near")
	far = os.NewFile(uintptr(fds[1]), "far")
	near, err = net.FileConn(ours)
	ours.Close()
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// Both is New where both ends stay in this program.
func Both() (one, other net.Conn, err error) {
	one, far, err := New()
	if err != nil {
		return nil, nil, err
	}
	defer far.Close()
	if other, err = net.FileConn(far); err != nil {
		one.Close()
		return nil, nil, err
	}
	return one, other, nil
}
