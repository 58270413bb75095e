package sandbox

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What no namespace holds is kept from programs by their calls. Keyrings come to a program
// from whoever started the daemon, with the keys in them. Sockets of virtual machines lead to
// the host, to all its guests and to what runs the host, out of any network namespace; other
// families of sockets are code of the kernel's that no program here needs. By rings (io_uring)
// a program makes sockets of every family without a call that could be looked at. And whoever
// has a tap open may say that it outlives him, and whose it is, and give the host's end any
// address: a bridge of the host's own then takes that for its own, and the host loses its network.
// Whoever has a guest's vsock open may have it be another guest's, to the host and what runs there;
// the daemon has said whose it is before, so QEMU is told that it has done so, and nothing is done.
// Programs for the kernel (bpf) and its counters are for whom the host lets have them by a setting of its.
// A loop device does as whoever may write to it says, which part of which file it is: its neighbours there would be the guest's.
// Whoever has a logical volume to write reserves the whole disk that it lies on, from other hosts, too.
// And what is noted with a file in its attributes is the daemon's to note: a file that everybody may
// write keeps them from nobody who has it open.
// Nor does a program trace others: those of its user are its own, but for the guest's TPM emulator.
// A child that it makes is its own, and not its parent's, the daemon, who would never look after it: what has
// ended keeps its number until then. Of the newer call for that (clone3) a filter does not see what is asked.
// A user namespace would give it privileges over much of the kernel: its root keeps it from making one, and so do its calls,
// lest all hang on one nail. By its own faults (userfaultfd) it could hold the kernel up in the middle of what that copies.
// The kernel's log tells of the whole host. Segments (modify_ldt) are for programs of another age.

// families are the sockets that a program may make, with their protocols; none: all. The kernel would fetch others
// for whoever asks. Of netlink there are the links of its network, and what tells of devices that come and go,
// which passing on devices takes; others tell what the host's programs do.
var families = []struct {
	family    uint32
	protocols []uint32
}{
	{unix.AF_UNIX, nil},
	{unix.AF_INET, internet},
	{unix.AF_INET6, internet},
	{unix.AF_NETLINK, []uint32{unix.NETLINK_ROUTE, unix.NETLINK_KOBJECT_UEVENT}},
}

// internet are the protocols of IP's sockets.
var internet = []uint32{unix.IPPROTO_IP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6}

// controls are what programs may not do with a tap, or a disk of the host's, that they have open.
var controls = []uint32{
	unix.TUNSETPERSIST, unix.TUNSETOWNER, unix.TUNSETGROUP, unix.TUNSETLINK, unix.SIOCSIFHWADDR,
	// The kernel's IOC_PR_*: register, reserve, release, preempt, preempt and abort, clear.
	0x401870c8, 0x401070c9, 0x401070ca, 0x401870cb, 0x401870cc, 0x401070cd,
}

// setGuestCID is the kernel's VHOST_VSOCK_SET_GUEST_CID, by which a vsock has its number.
const setGuestCID = 0x4008af60

// loopControls are the kernel's LOOP_*, but for their last byte.
const loopControls, lastByte = 0x4c00, 0xff

// architectures are those whose calls all go by numbers that are known here, with what
// separates them from other ways of calling the same kernel.
var architectures = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// Where the kernel has what a filter looks at: struct seccomp_data, little endian.
const (
	callNumber, callArchitecture, firstArgument, secondArgument, thirdArgument = 0, 4, 16, 24, 32

	// x32 is the bit of calls of a second kind on amd64; no number elsewhere has it.
	x32 = 0x40000000
)

// Calls that are newer than the names of the others, with the same number on all architectures.
const setAttributeAt, removeAttributeAt = 463, 466

// withheld are the calls that no program has.
var withheld = []uint32{
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, setAttributeAt,
	unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, removeAttributeAt,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD,
	unix.SYS_CLONE3, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_USERFAULTFD, unix.SYS_SYSLOG,
}

// modifyLDT is a call of amd64 alone.
const modifyLDT = 154

// sift has the kernel refuse such calls to the thread, which may gain no privileges, and to
// all that it starts, as a kernel without them does.
func sift(rings bool) error {
	architecture, known := architectures[runtime.GOARCH]
	if !known {
		return fmt.Errorf("the calls of %s are not known", runtime.GOARCH)
	}
	program := callFilter(architecture, rings)
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
}

func callFilter(architecture uint32, rings bool) []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	equal := func(to uint32, skip, skipElse uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: skip, Jf: skipElse, K: to}
	}
	verdict := func(v uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v} }
	absent := verdict(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS))
	allowed := verdict(unix.SECCOMP_RET_ALLOW)

	program := []unix.SockFilter{
		load(callArchitecture), equal(architecture, 1, 0), absent,
		load(callNumber),
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, Jf: 1, K: x32},
		absent,
		// First, for a guest's processors run by it.
		equal(unix.SYS_IOCTL, 0, uint8(2*len(controls)+7)), load(secondArgument),
		equal(setGuestCID, 0, 1), verdict(unix.SECCOMP_RET_ERRNO),
	}
	for _, control := range controls {
		program = append(program, equal(control, 0, 1), verdict(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)))
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: ^uint32(lastByte)},
		equal(loopControls, 0, 1), verdict(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)), allowed)
	refused := withheld
	if !rings {
		refused = append(slices.Clip(refused), unix.SYS_IO_URING_SETUP)
	}
	if architecture == unix.AUDIT_ARCH_X86_64 {
		refused = append(slices.Clip(refused), modifyLDT)
	}
	for _, call := range refused {
		program = append(program, equal(call, 0, 1), absent)
	}
	program = append(program, equal(unix.SYS_CLONE, 0, 4), load(firstArgument),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jf: 1, K: unix.CLONE_PARENT | unix.CLONE_NEWUSER},
		verdict(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)), allowed)
	program = append(program, equal(unix.SYS_SOCKET, 2, 0), equal(unix.SYS_SOCKETPAIR, 1, 0),
		allowed, load(firstArgument))
	for _, f := range families {
		if f.protocols == nil {
			program = append(program, equal(f.family, 0, 1), allowed)
			continue
		}
		program = append(program, equal(f.family, 0, uint8(2*len(f.protocols)+2)), load(thirdArgument))
		for _, protocol := range f.protocols {
			program = append(program, equal(protocol, 0, 1), allowed)
		}
		program = append(program, verdict(unix.SECCOMP_RET_ERRNO|uint32(unix.EPROTONOSUPPORT)))
	}
	return append(program, verdict(unix.SECCOMP_RET_ERRNO|uint32(unix.EAFNOSUPPORT)))
}
