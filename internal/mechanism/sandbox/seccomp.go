package sandbox

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tables below list the system calls that a sandboxed program may not make, with the reason. They
// refuse what no namespace confines. All other calls are allowed.

// refusedCalls are refused with any arguments. The program sees ENOSYS, as on a kernel without the call.
var refusedCalls = []struct {
	number uint32
	reason string
}{
	{unix.SYS_KEYCTL, keyrings},
	{unix.SYS_ADD_KEY, keyrings},
	{unix.SYS_REQUEST_KEY, keyrings},
	{unix.SYS_BPF, "some hosts let every user load programs into the kernel"},
	{unix.SYS_PERF_EVENT_OPEN, "some hosts let every user read the kernel's counters"},
	{unix.SYS_SETXATTR, attributes},
	{unix.SYS_LSETXATTR, attributes},
	{unix.SYS_FSETXATTR, attributes},
	{setxattrat, attributes},
	{unix.SYS_REMOVEXATTR, attributes},
	{unix.SYS_LREMOVEXATTR, attributes},
	{unix.SYS_FREMOVEXATTR, attributes},
	{removexattrat, attributes},
	{unix.SYS_PTRACE, otherProcesses},
	{unix.SYS_PROCESS_VM_READV, otherProcesses},
	{unix.SYS_PROCESS_VM_WRITEV, otherProcesses},
	{unix.SYS_PIDFD_GETFD, otherProcesses},
	{unix.SYS_CLONE3, "a filter cannot read its flags, which lie in memory; clone does the same"},
	{unix.SYS_UNSHARE, userNamespaces},
	{unix.SYS_SETNS, userNamespaces},
	{unix.SYS_USERFAULTFD, "the program could stop the kernel in the middle of a copy"},
	{unix.SYS_SYSLOG, "the kernel's log is about the whole host"},
}

// Reasons of several calls.
const (
	keyrings       = "a program inherits the keyrings of the user who started the daemon"
	attributes     = "the daemon keeps notes in the attributes of files that a program may write"
	otherProcesses = "a process of the same user, such as the TPM emulator, could be read and changed"
	userNamespaces = "a user namespace gives privileges over much of the kernel; the root directory prevents one, too"
)

// io_uring_setup is refused, too, unless the program needs it: io_uring makes sockets of every family without a
// system call that a filter sees.

// modifyLDT is modify_ldt, which amd64 alone has: no program here needs the kernel's code for segments.
const modifyLDT = 154

// Calls that are newer than the names in package unix. Their numbers are the same on all architectures.
const setxattrat, removexattrat = 463, 466

// refusedIoctls are refused with EPERM, by their request.
var refusedIoctls = []struct {
	request uint32
	reason  string
}{
	{unix.TUNSETPERSIST, tap},
	{unix.TUNSETOWNER, tap},
	{unix.TUNSETGROUP, tap},
	{unix.TUNSETLINK, tap},
	{unix.SIOCSIFHWADDR, "a bridge of the host takes the tap's address for its own, and the host loses its network"},
	{0x401870c8, reservation}, // IOC_PR_REGISTER
	{0x401070c9, reservation}, // IOC_PR_RESERVE
	{0x401070ca, reservation}, // IOC_PR_RELEASE
	{0x401870cb, reservation}, // IOC_PR_PREEMPT
	{0x401870cc, reservation}, // IOC_PR_PREEMPT_ABORT
	{0x401070cd, reservation}, // IOC_PR_CLEAR
}

// Reasons of several requests.
const (
	tap         = "a tap would outlive its guest, or become another user's"
	reservation = "a reservation of a logical volume is one of the whole disk below it, against other hosts, too"
)

// Requests of loop devices, 0x4c00 to 0x4cff, are refused with EPERM: the program could make a loop device
// show another part of its file, which belongs to another guest.
const loopRequests, lastByte = 0x4c00, 0xff

// vhostVsockSetGuestCID returns success without effect, because QEMU always makes the call. The daemon has set
// the context id before; with another id the program would appear to the host as another guest.
const vhostVsockSetGuestCID = 0x4008af60

// refusedCloneFlags are refused with EPERM.
const refusedCloneFlags = unix.CLONE_PARENT | // the child would be a child of the daemon, which never waits for it
	unix.CLONE_NEWUSER // as unshare

// allowedSockets are the sockets that a program may make. Another family is refused with EAFNOSUPPORT, another
// protocol with EPROTONOSUPPORT. AF_VSOCK reaches the host and its guests from every network namespace. For the
// other families the kernel would load modules that no program here needs.
var allowedSockets = []struct {
	family    uint32
	protocols []uint32 // nil: all
}{
	{unix.AF_UNIX, nil},
	{unix.AF_INET, internetProtocols},
	{unix.AF_INET6, internetProtocols},
	// Device passthrough reads the links of the program's network, and events of devices.
	{unix.AF_NETLINK, []uint32{unix.NETLINK_ROUTE, unix.NETLINK_KOBJECT_UEVENT}},
}

var internetProtocols = []uint32{unix.IPPROTO_IP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6}

// architectures are those with system calls of the numbers above. A call by another architecture of the same
// kernel (32-bit, x32) is refused with ENOSYS.
var architectures = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// x32 is the bit that marks x32 calls on amd64. No other architecture has numbers with it.
const x32 = 0x40000000

// Offsets in struct seccomp_data. The filter reads the lower 32 bits of an argument, little endian; the kernel
// ignores the upper bits of the arguments that are checked here.
const (
	offsetNumber       = 0
	offsetArchitecture = 4
	offsetArgument0    = 16
	offsetArgument1    = 24
	offsetArgument2    = 32
)

// installSeccomp installs the filter for the calling thread and all processes that it starts. The thread
// must have set PR_SET_NO_NEW_PRIVS.
func installSeccomp(allowIOUring bool) error {
	architecture, known := architectures[runtime.GOARCH]
	if !known {
		return fmt.Errorf("the seccomp filter does not support %s", runtime.GOARCH)
	}
	program := seccompProgram(architecture, allowIOUring)
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
}

// seccompProgram compiles the tables to a filter. ioctl is tested first, because QEMU runs the guest's
// processors with it (KVM_RUN).
func seccompProgram(architecture uint32, allowIOUring bool) []unix.SockFilter {
	var b bpf
	b.load(offsetArchitecture)
	b.unless(unix.BPF_JEQ, architecture, func() { b.refuse(unix.ENOSYS) })
	b.load(offsetNumber)
	b.when(unix.BPF_JGE, x32, func() { b.refuse(unix.ENOSYS) })
	b.when(unix.BPF_JEQ, unix.SYS_IOCTL, b.ioctl)
	for _, c := range refusedCalls {
		b.when(unix.BPF_JEQ, c.number, func() { b.refuse(unix.ENOSYS) })
	}
	if !allowIOUring {
		b.when(unix.BPF_JEQ, unix.SYS_IO_URING_SETUP, func() { b.refuse(unix.ENOSYS) })
	}
	if architecture == unix.AUDIT_ARCH_X86_64 {
		b.when(unix.BPF_JEQ, modifyLDT, func() { b.refuse(unix.ENOSYS) })
	}
	b.when(unix.BPF_JEQ, unix.SYS_CLONE, func() {
		b.load(offsetArgument0)
		b.when(unix.BPF_JSET, refusedCloneFlags, func() { b.refuse(unix.EPERM) })
		b.allow()
	})
	b.when(unix.BPF_JEQ, unix.SYS_SOCKET, b.socket)
	b.when(unix.BPF_JEQ, unix.SYS_SOCKETPAIR, b.socket)
	b.allow()
	return b
}

// ioctl decides by the request.
func (b *bpf) ioctl() {
	b.load(offsetArgument1)
	b.when(unix.BPF_JEQ, vhostVsockSetGuestCID, func() { b.refuse(0) }) // errno 0: success
	for _, i := range refusedIoctls {
		b.when(unix.BPF_JEQ, i.request, func() { b.refuse(unix.EPERM) })
	}
	b.and(^uint32(lastByte))
	b.when(unix.BPF_JEQ, loopRequests, func() { b.refuse(unix.EPERM) })
	b.allow()
}

// socket decides by family and protocol.
func (b *bpf) socket() {
	b.load(offsetArgument0)
	for _, s := range allowedSockets {
		b.when(unix.BPF_JEQ, s.family, func() {
			if s.protocols == nil {
				b.allow()
				return
			}
			b.load(offsetArgument2)
			for _, p := range s.protocols {
				b.when(unix.BPF_JEQ, p, b.allow)
			}
			b.refuse(unix.EPROTONOSUPPORT)
		})
	}
	b.refuse(unix.EAFNOSUPPORT)
}

// bpf is a program of the kernel's classic packet filter. The jump over a block is computed from the
// block's length.
type bpf []unix.SockFilter

func (b *bpf) add(code uint16, k uint32) int {
	*b = append(*b, unix.SockFilter{Code: code, K: k})
	return len(*b) - 1
}

func (b *bpf) load(offset uint32) { b.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset) }

func (b *bpf) and(mask uint32) { b.add(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, mask) }

func (b *bpf) allow() { b.add(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW) }

func (b *bpf) refuse(with unix.Errno) {
	b.add(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|uint32(with))
}

// when runs the block if the test of the loaded value is true. The block ends with a return.
func (b *bpf) when(test uint16, k uint32, block func()) {
	at := b.add(unix.BPF_JMP|test|unix.BPF_K, k)
	block()
	(*b)[at].Jf = b.since(at)
}

// unless runs the block if the test of the loaded value is false.
func (b *bpf) unless(test uint16, k uint32, block func()) {
	at := b.add(unix.BPF_JMP|test|unix.BPF_K, k)
	block()
	(*b)[at].Jt = b.since(at)
}

// since counts the instructions that a jump at this place skips: 255 at most. The tables are constant, so
// the tests of this package would hit the panic.
func (b *bpf) since(at int) uint8 {
	n := len(*b) - at - 1
	if n > 255 {
		panic("sandbox: a block of the seccomp filter is too long for a jump")
	}
	return uint8(n)
}
