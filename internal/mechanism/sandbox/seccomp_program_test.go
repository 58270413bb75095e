package sandbox

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// call is the input of a filter.
type call struct {
	number, architecture uint32
	arguments            [6]uint64
}

// verdict runs a filter as the kernel does, for calls that this machine's kernel may not support.
func verdict(t *testing.T, program []unix.SockFilter, c call) uint32 {
	t.Helper()
	var a uint32
	for at := 0; at < len(program); at++ {
		i := program[at]
		jump := func(taken bool) {
			if taken {
				at += int(i.Jt)
			} else {
				at += int(i.Jf)
			}
		}
		switch i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			switch i.K {
			case offsetNumber:
				a = c.number
			case offsetArchitecture:
				a = c.architecture
			default:
				a = uint32(c.arguments[(i.K-offsetArgument0)/8])
			}
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= i.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(a == i.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(a >= i.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(a&i.K != 0)
		case unix.BPF_RET | unix.BPF_K:
			return i.K
		default:
			t.Fatalf("instruction %d is %#x", at, i.Code)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

// TestSeccompProgram_Verdicts covers calls and devices that this kernel and host may not have.
// Promise: I1
func TestSeccompProgram_Verdicts(t *testing.T) {
	ours, known := architectures[runtime.GOARCH]
	if !known {
		t.Skipf("the filter does not support %s", runtime.GOARCH)
	}
	const allowed = unix.SECCOMP_RET_ALLOW
	absent, forbidden := unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS), unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)
	noFamily := unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)
	for _, c := range []struct {
		what          string
		number        uint32
		first, second uint64
		want          uint32
	}{
		{"an ordinary call", unix.SYS_GETPID, 0, 0, allowed},
		{"a keyring", unix.SYS_KEYCTL, 0, 0, absent},
		{"memory of another process", unix.SYS_PROCESS_VM_READV, 0, 0, absent},
		{"io_uring", unix.SYS_IO_URING_SETUP, 0, 0, absent},
		{"clone", unix.SYS_CLONE, uint64(unix.SIGCHLD), 0, allowed},
		{"clone with CLONE_PARENT", unix.SYS_CLONE, unix.CLONE_PARENT | uint64(unix.SIGCHLD), 0, forbidden},
		{"AF_INET socket", unix.SYS_SOCKET, unix.AF_INET, 0, allowed},
		{"AF_VSOCK socket", unix.SYS_SOCKET, unix.AF_VSOCK, 0, noFamily},
		{"AF_UNIX socketpair", unix.SYS_SOCKETPAIR, unix.AF_UNIX, 0, allowed},
		{"AF_ALG socketpair", unix.SYS_SOCKETPAIR, unix.AF_ALG, 0, noFamily},
		{"TCGETS", unix.SYS_IOCTL, 0, unix.TCGETS, allowed},
		{"TUNSETPERSIST", unix.SYS_IOCTL, 0, unix.TUNSETPERSIST, forbidden},
		{"LOOP_SET_STATUS64", unix.SYS_IOCTL, 0, unix.LOOP_SET_STATUS64, forbidden},
		{"VHOST_VSOCK_SET_GUEST_CID", unix.SYS_IOCTL, 0, vhostVsockSetGuestCID, unix.SECCOMP_RET_ERRNO},
	} {
		asked := call{number: c.number, architecture: ours, arguments: [6]uint64{c.first, c.second}}
		if got := verdict(t, seccompProgram(ours, false), asked); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.what, got, c.want)
		}
	}
	if got := verdict(t, seccompProgram(ours, true), call{number: unix.SYS_IO_URING_SETUP, architecture: ours}); got != allowed {
		t.Errorf("io_uring with AllowIOUring: %#x", got)
	}
}

// TestSeccompProgram_RefusesForeignArchitectures: calls with numbers of another architecture are refused,
// even if the kernel that runs this test does not support them.
// Promise: I1
func TestSeccompProgram_RefusesForeignArchitectures(t *testing.T) {
	const absent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	for _, rings := range []bool{false, true} {
		for name, architecture := range architectures {
			program := seccompProgram(architecture, rings)
			for number := range uint32(512) {
				for what, c := range map[string]call{
					"as i386": {number: number, architecture: unix.AUDIT_ARCH_I386},
					"as arm":  {number: number, architecture: unix.AUDIT_ARCH_ARM},
					"as x32":  {number: number | x32, architecture: architecture},
				} {
					if got := verdict(t, program, c); got != absent {
						t.Errorf("on %s call %d %s: %#x", name, number, what, got)
					}
				}
			}
			for _, number := range []uint32{unix.SYS_READ, unix.SYS_FUTEX, unix.SYS_SENDMSG} {
				if got := verdict(t, program, call{number: number, architecture: architecture}); got != unix.SECCOMP_RET_ALLOW {
					t.Errorf("on %s call %d is refused: %#x", name, number, got)
				}
			}
			// Only the lower 32 bits of the argument count.
			vsock := call{number: unix.SYS_SOCKET, architecture: architecture, arguments: [6]uint64{unix.AF_VSOCK | 1<<32, unix.SOCK_STREAM}}
			if got := verdict(t, program, vsock); got != unix.SECCOMP_RET_ERRNO|uint32(unix.EAFNOSUPPORT) {
				t.Errorf("on %s AF_VSOCK with upper bits set: %#x", name, got)
			}
		}
	}
}

// TestSeccomp_Tables checks what the compiler of the tables relies on: a request is compared under its own mask only
// if no line with a mask stands before it. Each line has a reason.
func TestSeccomp_Tables(t *testing.T) {
	for n, i := range refusedIoctls {
		if i.mask != wholeRequest && n != len(refusedIoctls)-1 {
			t.Errorf("the request %#x has a mask and is not the last", i.request)
		}
		if i.reason == "" {
			t.Errorf("the request %#x has no reason", i.request)
		}
	}
	for _, c := range refusedCalls {
		if c.reason == "" {
			t.Errorf("the call %d has no reason", c.number)
		}
	}
	for _, c := range refusedCloneFlags {
		if c.reason == "" {
			t.Errorf("the flag %#x has no reason", c.flag)
		}
	}
	for _, s := range allowedSockets {
		if s.reason == "" {
			t.Errorf("the family %d has no reason", s.family)
		}
	}
}
