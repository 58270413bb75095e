package libvirt

import (
	"errors"
	"net"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/fault"
)

// peer is who is at the other end, as the kernel knows it.
type peer struct {
	pid      int32
	uid, gid uint32
	groups   []uint32
	unknown  error // why the kernel could not tell
}

// maxGroups is the kernel's own bound on supplementary groups of a process.
const maxGroups = 65536

// peerOf asks the kernel who opened the connection.
func peerOf(conn net.Conn) peer {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return peer{unknown: errors.New("only a unix socket tells")}
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return peer{unknown: err}
	}
	var p peer
	err = raw.Control(func(fd uintptr) {
		cred, credErr := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if credErr != nil {
			p.unknown = credErr
			return
		}
		p = peer{pid: cred.Pid, uid: cred.Uid, gid: cred.Gid}
		p.groups, p.unknown = peerGroups(fd)
	})
	p.unknown = errors.Join(p.unknown, err)
	return p
}

// peerGroups asks for the supplementary groups that the peer had when it connected.
func peerGroups(fd uintptr) ([]uint32, error) {
	for size := 64; size <= maxGroups; size *= 4 {
		groups := make([]uint32, size)
		length := uint32(4 * size)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&length)), 0)
		switch errno {
		case 0:
			return groups[:length/4], nil
		case unix.ERANGE:
			continue
		default:
			return nil, errno
		}
	}
	return nil, unix.ERANGE
}

// admit decides whether the peer may speak at all. On a read-only socket the
// file's mode has decided already. Otherwise it must be root, the daemon's own
// user, or a member of one of the groups.
func (p peer) admit(readOnly bool, groups []uint32) error {
	if p.unknown != nil {
		return withCode(codeAuthFailed, fault.Wrap(p.unknown, fault.Denied, fault.Call, "cannot tell who is calling"))
	}
	if readOnly || p.uid == 0 || p.uid == uint32(os.Geteuid()) {
		return nil
	}
	for _, g := range groups {
		if p.gid == g || slices.Contains(p.groups, g) {
			return nil
		}
	}
	return withCode(codeAuthFailed, fault.New(fault.Denied, fault.Call,
		"user %d may not manage guests: be root, join the group that owns the socket, or use the read-only socket", p.uid))
}
