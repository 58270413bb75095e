package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSeccomp_TapRequests: a tap that a program was handed ends with the program, and keeps its
// address: a bridge could take a new one for its own.
// Promise: I11
func TestSeccomp_TapRequests(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes taps")
	}
	err := onOwnThread(func() (<-chan struct{}, error) { return nil, misuseTap() })
	if errors.Is(err, errNoTap) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestSeccomp_RefusedIoctlsAndCalls: a program cannot change the context id of its vsock (the ioctl
// reports success, as QEMU expects), reconfigure a loop device, reserve a disk, load programs into the
// kernel, read its counters, or change extended attributes.
// Promise: I11
func TestSeccomp_RefusedIoctlsAndCalls(t *testing.T) {
	err := onOwnThread(func() (<-chan struct{}, error) {
		null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer func() { _ = unix.Close(null) }()
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return nil, err
		}
		if err := installSeccomp(false); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoFilter, err)
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(null), vhostVsockSetGuestCID, 0); errno != 0 {
			return nil, fmt.Errorf("VHOST_VSOCK_SET_GUEST_CID: %w", errno)
		}
		if _, err := unix.IoctlGetTermios(null, unix.TCGETS); !errors.Is(err, unix.ENOTTY) {
			return nil, fmt.Errorf("an allowed ioctl: %w", err)
		}
		for _, request := range []uintptr{unix.LOOP_SET_FD, unix.LOOP_CLR_FD, unix.LOOP_SET_STATUS64, unix.LOOP_CONFIGURE} {
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(null), request, 0); errno != unix.EPERM {
				return nil, fmt.Errorf("loop device request %#x: %w", request, errno)
			}
		}
		for _, request := range []uintptr{0x401870c8, 0x401070c9, 0x401070ca, 0x401870cb, 0x401870cc, 0x401070cd} {
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(null), request, 0); errno != unix.EPERM {
				return nil, fmt.Errorf("persistent reservation request %#x: %w", request, errno)
			}
		}
		for _, call := range []uintptr{
			unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_FSETXATTR, unix.SYS_SETXATTR, unix.SYS_FREMOVEXATTR,
			unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_CLONE3,
			unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_USERFAULTFD, unix.SYS_SYSLOG,
		} {
			if _, _, errno := unix.Syscall(call, ^uintptr(0), 0, 0); errno != unix.ENOSYS {
				return nil, fmt.Errorf("call %d: %w", call, errno)
			}
		}
		return nil, nil
	})
	if errors.Is(err, errNoFilter) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestSeccomp_CloneFlags: a program's child is not a child of the daemon, and has no user namespace of its
// own.
// Promise: I1
func TestSeccomp_CloneFlags(t *testing.T) {
	err := onOwnThread(func() (<-chan struct{}, error) {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return nil, err
		}
		if err := installSeccomp(false); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoFilter, err)
		}
		for _, flag := range []uintptr{unix.CLONE_PARENT, unix.CLONE_NEWUSER} {
			child, _, errno := unix.RawSyscall(unix.SYS_CLONE, flag|uintptr(unix.SIGCHLD), 0, 0)
			for errno == 0 && child == 0 {
				_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
			if errno != unix.EPERM {
				return nil, fmt.Errorf("clone with flags %#x: %d, %w", flag, child, errno)
			}
		}
		return nil, exec.Command("/bin/true").Run() //nolint:noctx // ends without a signal
	})
	if errors.Is(err, errNoFilter) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestSeccomp_SocketFamiliesAndProtocols: a program can make the sockets that QEMU needs, and cannot make
// the kernel load modules for others.
// Promise: I1
func TestSeccomp_SocketFamiliesAndProtocols(t *testing.T) {
	err := onOwnThread(func() (<-chan struct{}, error) {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return nil, err
		}
		if err := installSeccomp(false); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoFilter, err)
		}
		for _, s := range []struct {
			family, kind, protocol int
			want                   error
		}{
			{unix.AF_UNIX, unix.SOCK_STREAM, 0, nil},
			{unix.AF_UNIX, unix.SOCK_SEQPACKET, 0, nil},
			{unix.AF_INET, unix.SOCK_STREAM, 0, nil},
			{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP, nil},
			{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP, nil},
			{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE, nil},
			{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT, nil},
			{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, unix.EPROTONOSUPPORT},
			{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP, unix.EPROTONOSUPPORT},
			{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW, unix.EPROTONOSUPPORT},
			{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE, unix.EPROTONOSUPPORT},
			{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER, unix.EPROTONOSUPPORT},
			{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_CONNECTOR, unix.EPROTONOSUPPORT},
			{unix.AF_VSOCK, unix.SOCK_STREAM, 0, unix.EAFNOSUPPORT},
			{unix.AF_PACKET, unix.SOCK_RAW, 0, unix.EAFNOSUPPORT},
		} {
			fd, err := unix.Socket(s.family, s.kind, s.protocol)
			if err == nil {
				_ = unix.Close(fd)
			}
			if !errors.Is(err, s.want) {
				return nil, fmt.Errorf("a socket of family %d, kind %d, protocol %d: %w", s.family, s.kind, s.protocol, err)
			}
		}
		return nil, nil
	})
	if errors.Is(err, errNoFilter) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

var errNoFilter = errors.New("this kernel has no seccomp filters")

var errNoTap = errors.New("this host cannot make taps")

// misuseTap makes a tap in a network namespace of the thread's own, and tries under the filter what only
// the host may do.
func misuseTap() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return errors.Join(errNoTap, err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.Join(errNoTap, err)
	}
	defer func() { _ = unix.Close(fd) }()
	tap, err := unix.NewIfreq("tap")
	if err != nil {
		return err
	}
	tap.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, tap); err != nil {
		return errors.Join(errNoTap, err)
	}
	before, err := net.InterfaceByName("tap")
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if err == nil {
		err = installSeccomp(false)
	}
	if err != nil {
		return err
	}
	for what, request := range map[string]uint{"can be made persistent": unix.TUNSETPERSIST, "can be given to another user": unix.TUNSETOWNER} {
		if err := unix.IoctlSetInt(fd, request, 1); !errors.Is(err, unix.EPERM) {
			return errors.New("the tap " + what)
		}
	}
	tap.SetUint16(unix.ARPHRD_ETHER)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFHWADDR, tap); !errors.Is(err, unix.EPERM) {
		return errors.New("the tap's address can be changed")
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, tap); err != nil { // as QEMU does
		return err
	}
	after, err := net.InterfaceByName("tap")
	if err == nil && after.HardwareAddr.String() != before.HardwareAddr.String() {
		err = errors.New("the tap's address has changed")
	}
	return err
}
