package listener

import (
	"errors"
	"net"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Peer identifies the other end of a connection, as the kernel knows it.
type Peer struct {
	PID      int32
	UID, GID uint32
	Groups   []uint32
	Unknown  error // why the kernel could not identify it
}

// maxGroups is the kernel's bound on supplementary groups of a process (NGROUPS_MAX).
const maxGroups = 65536

// PeerOf asks the kernel which process opened the connection.
func PeerOf(conn net.Conn) Peer {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return Peer{Unknown: errors.New("only a unix socket has peer credentials")}
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return Peer{Unknown: err}
	}
	var p Peer
	err = raw.Control(func(fd uintptr) {
		cred, credErr := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if credErr != nil {
			p.Unknown = credErr
			return
		}
		p = Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}
		p.Groups, p.Unknown = peerGroups(fd)
	})
	p.Unknown = errors.Join(p.Unknown, err)
	return p
}

// peerGroups returns the supplementary groups that the peer had when it connected.
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

// Admit decides whether the peer may connect. If the socket is for everybody, the
// file's mode has decided already. Otherwise it must be root, the daemon's own
// user, or a member of one of the groups.
func (p Peer) Admit(everybody bool, groups []uint32) error {
	if p.Unknown != nil {
		return fault.Wrap(p.Unknown, fault.Denied, fault.Call, "cannot identify the client")
	}
	if everybody || p.UID == 0 || p.UID == uint32(os.Geteuid()) {
		return nil
	}
	for _, g := range groups {
		if p.GID == g || slices.Contains(p.Groups, g) {
			return nil
		}
	}
	return fault.New(fault.Denied, fault.Call, "user %d may not manage guests: be root, or join the group that owns the socket", p.UID)
}
