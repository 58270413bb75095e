package chamber

import (
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
			case callNumber:
				a = c.number
			case callArchitecture:
				a = c.architecture
			default:
				a = uint32(c.arguments[(i.K-firstArgument)/8])
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

// TestOtherDoorsToTheKernelAreShut: calls by numbers that are not the architecture's are refused whatever they are, also
// where the kernel that runs this has no such door.
func TestOtherDoorsToTheKernelAreShut(t *testing.T) {
	const absent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	for _, rings := range []bool{false, true} {
		for name, architecture := range architectures {
			program := callFilter(architecture, rings)
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
