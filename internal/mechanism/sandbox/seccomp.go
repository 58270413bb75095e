package sandbox

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of a sandboxed program. Every call that no line names is allowed: namespaces, the root
// directory and missing capabilities confine it. The tables below are the whole policy; seccompProgram compiles
// them in this order.
//
//	call                     | refused                              | answer
//	-------------------------+--------------------------------------+---------------------------------
//	any of a foreign ABI     | all (32-bit, x32)                    | ENOSYS
//	refusedCalls             | always, whatever the arguments       | ENOSYS
//	clone                    | refusedCloneFlags                    | EPERM
//	ioctl                    | refusedIoctls                        | EPERM, or success without effect
//	socket, socketpair       | all families but allowedSockets      | EAFNOSUPPORT
//	                         | all other protocols of these         | EPROTONOSUPPORT
//
// ENOSYS is the answer of a kernel without the call, which programs expect.

// refusedCalls are refused whatever their arguments are.
var refusedCalls = []struct {
	number uint32
	reason string
	unless func(seccompOptions) bool // the call is allowed; nil: never
}{
	{unix.SYS_KEYCTL, keyrings, nil},
	{unix.SYS_ADD_KEY, keyrings, nil},
	{unix.SYS_REQUEST_KEY, keyrings, nil},
	{unix.SYS_BPF, "some hosts let every user load programs into the kernel", nil},
	{unix.SYS_PERF_EVENT_OPEN, "some hosts let every user read the kernel's counters", nil},
	{unix.SYS_SETXATTR, attributes, nil},
	{unix.SYS_LSETXATTR, attributes, nil},
	{unix.SYS_FSETXATTR, attributes, nil},
	{setxattrat, attributes, nil},
	{unix.SYS_REMOVEXATTR, attributes, nil},
	{unix.SYS_LREMOVEXATTR, attributes, nil},
	{unix.SYS_FREMOVEXATTR, attributes, nil},
	{removexattrat, attributes, nil},
	{unix.SYS_PTRACE, otherProcesses, nil},
	{unix.SYS_PROCESS_VM_READV, otherProcesses, nil},
	{unix.SYS_PROCESS_VM_WRITEV, otherProcesses, nil},
	{unix.SYS_PIDFD_GETFD, otherProcesses, nil},
	{unix.SYS_CLONE3, "a filter cannot read its flags, which lie in memory; clone does the same", nil},
	{unix.SYS_UNSHARE, userNamespaces, nil},
	{unix.SYS_SETNS, userNamespaces, nil},
	{unix.SYS_USERFAULTFD, "the program could stop the kernel in the middle of a copy", nil},
	{unix.SYS_SYSLOG, "the kernel's log is about the whole host", nil},
	{unix.SYS_IO_URING_SETUP, "io_uring makes sockets of every family without a system call that a filter sees", seccompOptions.needsIOUring},
	{modifyLDT, "no program here needs the kernel's code for segments", seccompOptions.isNotAMD64},
}

// Reasons of several calls.
const (
	keyrings       = "a program inherits the keyrings of the user who started the daemon"
	attributes     = "the daemon keeps notes in the attributes of files that a program may write"
	otherProcesses = "a process of the same user, such as the TPM emulator, could be read and changed"
	userNamespaces = "a user namespace gives privileges over much of the kernel; the root directory prevents one, too"
)

// Numbers that package unix does not have.
const (
	setxattrat    = 463 // the same on all architectures
	removexattrat = 466
	modifyLDT     = 154 // modify_ldt, which amd64 alone has; the number is another call elsewhere
)

// refusedCloneFlags are refused in clone. Without them clone makes threads and child processes as usual.
var refusedCloneFlags = []struct {
	flag   uint32
	reason string
}{
	{unix.CLONE_PARENT, "the child would be a child of the daemon, which never waits for it"},
	{unix.CLONE_NEWUSER, userNamespaces},
}

// refusedIoctls are refused by their request, which is compared under the mask. Answer 0 is success.
var refusedIoctls = []struct {
	request, mask uint32
	answer        unix.Errno
	reason        string
}{
	{vhostVsockSetGuestCID, wholeRequest, 0, "QEMU always makes it, and the daemon has set the context ID before; " +
		"with another ID the program would appear to the host as another guest"},
	{unix.TUNSETPERSIST, wholeRequest, unix.EPERM, tap},
	{unix.TUNSETOWNER, wholeRequest, unix.EPERM, tap},
	{unix.TUNSETGROUP, wholeRequest, unix.EPERM, tap},
	{unix.TUNSETLINK, wholeRequest, unix.EPERM, tap},
	{unix.SIOCSIFHWADDR, wholeRequest, unix.EPERM, "a bridge of the host takes the tap's address for its own, and the host loses its network"},
	{0x401870c8, wholeRequest, unix.EPERM, reservation}, // IOC_PR_REGISTER
	{0x401070c9, wholeRequest, unix.EPERM, reservation}, // IOC_PR_RESERVE
	{0x401070ca, wholeRequest, unix.EPERM, reservation}, // IOC_PR_RELEASE
	{0x401870cb, wholeRequest, unix.EPERM, reservation}, // IOC_PR_PREEMPT
	{0x401870cc, wholeRequest, unix.EPERM, reservation}, // IOC_PR_PREEMPT_ABORT
	{0x401070cd, wholeRequest, unix.EPERM, reservation}, // IOC_PR_CLEAR
	{0x4c00, ^uint32(0xff), unix.EPERM, "a loop device could be made to show another part of its file, which belongs to another guest"},
}

const (
	wholeRequest          = ^uint32(0) // the mask of one request
	vhostVsockSetGuestCID = 0x4008af60 // VHOST_VSOCK_SET_GUEST_CID

	// Reasons of several requests.
	tap         = "a tap would outlive its guest, or become another user's"
	reservation = "a reservation of a logical volume is one of the whole disk below it, against other hosts, too"
)

// allowedSockets are the sockets that a program may make. AF_VSOCK, which is not among them, reaches the host and
// its guests from every network namespace. For other families and protocols the kernel would load modules that no
// program here needs.
var allowedSockets = []struct {
	family    uint32
	protocols []uint32 // nil: all
	reason    string
}{
	{unix.AF_UNIX, nil, "monitors, consoles, displays and the TPM emulator"},
	{unix.AF_INET, internetProtocols, networkNamespace},
	{unix.AF_INET6, internetProtocols, networkNamespace},
	{
		unix.AF_NETLINK,
		[]uint32{unix.NETLINK_ROUTE, unix.NETLINK_KOBJECT_UEVENT},
		"device passthrough reads the links of the program's network, and events of devices",
	},
}

// networkNamespace is the reason of both IP families.
const networkNamespace = "the network namespace confines it: an empty one, unless the specification asks for the host's"

var internetProtocols = []uint32{unix.IPPROTO_IP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6}

// architectures are those with system calls of the numbers above.
var architectures = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// x32 is the bit that marks x32 calls on amd64. No other architecture has numbers with it.
const x32 = 0x40000000

// seccompOptions are what the filter of one program depends on.
type seccompOptions struct {
	architecture uint32
	allowIOUring bool
}

func (o seccompOptions) needsIOUring() bool { return o.allowIOUring }

func (o seccompOptions) isNotAMD64() bool { return o.architecture != unix.AUDIT_ARCH_X86_64 }

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
	options := seccompOptions{architecture, allowIOUring}
	var b bpf
	b.load(offsetArchitecture)
	b.unless(unix.BPF_JEQ, architecture, func() { b.refuse(unix.ENOSYS) })
	b.load(offsetNumber)
	b.when(unix.BPF_JGE, x32, func() { b.refuse(unix.ENOSYS) })
	b.when(unix.BPF_JEQ, unix.SYS_IOCTL, b.ioctl)
	for _, c := range refusedCalls {
		if c.unless == nil || !c.unless(options) {
			b.when(unix.BPF_JEQ, c.number, func() { b.refuse(unix.ENOSYS) })
		}
	}
	b.when(unix.BPF_JEQ, unix.SYS_CLONE, b.clone)
	b.when(unix.BPF_JEQ, unix.SYS_SOCKET, b.socket)
	b.when(unix.BPF_JEQ, unix.SYS_SOCKETPAIR, b.socket)
	b.allow()
	return b
}

// clone decides by the flags.
func (b *bpf) clone() {
	flags := uint32(0)
	for _, c := range refusedCloneFlags {
		flags |= c.flag
	}
	b.load(offsetArgument0)
	b.when(unix.BPF_JSET, flags, func() { b.refuse(unix.EPERM) })
	b.allow()
}

// ioctl decides by the request. A mask stays applied for the lines after it, so the one with a mask is the last.
func (b *bpf) ioctl() {
	b.load(offsetArgument1)
	for _, i := range refusedIoctls {
		if i.mask != wholeRequest {
			b.and(i.mask)
		}
		b.when(unix.BPF_JEQ, i.request, func() { b.refuse(i.answer) })
	}
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
