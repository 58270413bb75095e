package sandbox

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// call is what a filter looks at.
type call struct {
	number, architecture uint32
	arguments            [6]uint64
}

// verdict does with a filter what the kernel does, for calls that this machine's kernel may have no way to make.
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

// TestSeccompProgram_Verdicts of calls that this kernel may not have, nor this host what they are about.
// Promise: I1
func TestSeccompProgram_Verdicts(t *testing.T) {
	ours, known := architectures[runtime.GOARCH]
	if !known {
		t.Skipf("the calls of %s are not known", runtime.GOARCH)
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
		{"another program's memory", unix.SYS_PROCESS_VM_READV, 0, 0, absent},
		{"rings", unix.SYS_IO_URING_SETUP, 0, 0, absent},
		{"a child", unix.SYS_CLONE, uint64(unix.SIGCHLD), 0, allowed},
		{"a child of its parent's", unix.SYS_CLONE, unix.CLONE_PARENT | uint64(unix.SIGCHLD), 0, forbidden},
		{"a socket", unix.SYS_SOCKET, unix.AF_INET, 0, allowed},
		{"a socket to the host", unix.SYS_SOCKET, unix.AF_VSOCK, 0, noFamily},
		{"two sockets", unix.SYS_SOCKETPAIR, unix.AF_UNIX, 0, allowed},
		{"two sockets of the kernel's", unix.SYS_SOCKETPAIR, unix.AF_ALG, 0, noFamily},
		{"a terminal", unix.SYS_IOCTL, 0, unix.TCGETS, allowed},
		{"a tap that stays", unix.SYS_IOCTL, 0, unix.TUNSETPERSIST, forbidden},
		{"a loop device", unix.SYS_IOCTL, 0, unix.LOOP_SET_STATUS64, forbidden},
		{"a vsock", unix.SYS_IOCTL, 0, vhostVsockSetGuestCID, unix.SECCOMP_RET_ERRNO},
	} {
		asked := call{number: c.number, architecture: ours, arguments: [6]uint64{c.first, c.second}}
		if got := verdict(t, seccompProgram(ours, false), asked); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.what, got, c.want)
		}
	}
	if got := verdict(t, seccompProgram(ours, true), call{number: unix.SYS_IO_URING_SETUP, architecture: ours}); got != allowed {
		t.Errorf("rings for who has them: %#x", got)
	}
}

// TestSeccompProgram_RefusesForeignArchitectures: calls by numbers that are not the architecture's are refused whatever they are, also
// where the kernel that runs this has no such door.
// Promise: I1
func TestSeccompProgram_RefusesForeignArchitectures(t *testing.T) {
	const absent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	for _, rings := range []bool{false, true} {
		for name, architecture := range architectures {
			program := seccompProgram(architecture, rings)
			for number := range uint32(512) {
				for what, c := range map[string]call{
					"as a program of 32 bits":      {number: number, architecture: unix.AUDIT_ARCH_I386},
					"as one of 32 bits of another": {number: number, architecture: unix.AUDIT_ARCH_ARM},
					"by its long number":           {number: number | x32, architecture: architecture},
				} {
					if got := verdict(t, program, c); got != absent {
						t.Errorf("on %s call %d is made %s: %#x", name, number, what, got)
					}
				}
			}
			for _, number := range []uint32{unix.SYS_READ, unix.SYS_FUTEX, unix.SYS_SENDMSG} {
				if got := verdict(t, program, call{number: number, architecture: architecture}); got != unix.SECCOMP_RET_ALLOW {
					t.Errorf("on %s call %d is refused: %#x", name, number, got)
				}
			}
			// What is asked has 32 bits, whatever stands above them.
			vsock := call{number: unix.SYS_SOCKET, architecture: architecture, arguments: [6]uint64{unix.AF_VSOCK | 1<<32, unix.SOCK_STREAM}}
			if got := verdict(t, program, vsock); got != unix.SECCOMP_RET_ERRNO|uint32(unix.EAFNOSUPPORT) {
				t.Errorf("on %s a socket of virtual machines is made: %#x", name, got)
			}
		}
	}
}
