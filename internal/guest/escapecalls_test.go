package guest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// calls are ways out that not every kernel, nor every file system, has: what root cannot do by one from outside
// is not tried from within.
var calls = map[string]func(t targets) error{
	"find the keys of who started it": func(targets) error {
		_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
		return err
	},
	"have the host look for a key": func(targets) error {
		_, err := unix.RequestKey("keyring", "lodge-escape", "", 0)
		return storeRecovered(err)
	},
	"reach other virtual machines":           func(targets) error { return makes(unix.AF_VSOCK, unix.SOCK_STREAM, 0) },
	"use ciphers of the kernel's":            func(targets) error { return makes(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) },
	"see packets":                            func(targets) error { return makes(unix.AF_PACKET, unix.SOCK_RAW, 0) },
	"make packets":                           func(targets) error { return makes(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) },
	"have the kernel speak another protocol": func(targets) error { return makes(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP) },
	"be told what the host's programs do":    func(targets) error { return makes(unix.AF_NETLINK, unix.SOCK_DGRAM, unix.NETLINK_CONNECTOR) },
	"see the host's links":                   func(targets) error { return seesLinks() },
	"make a ring":                            func(targets) error { return makesRing() },
	"stop the kernel by its own faults":      func(targets) error { return closed(raw(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userModeOnly, 0, 0)) },
	"read the kernel's log":                  func(targets) error { _, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 64)); return err },
	"make a file system":                     func(targets) error { return closed(unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)) },
	"copy a mount": func(targets) error {
		return closed(unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
	},
	"open another guest's disk by its handle": targets.opensHandle,
	"compare itself with another guest": func(t targets) error {
		_, err := raw(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(t.Victim), 1)
		return err
	},
	"find memory that others share":  func(t targets) error { _, err := unix.SysvShmGet(t.Segment, 0, 0); return err },
	"find messages of others":        func(t targets) error { return opensQueue(t.Queue, unix.O_RDONLY) },
	"write a setting of the host's":  func(targets) error { return opens("/proc/sys/kernel/core_pattern", os.O_WRONLY) },
	"load a program into the kernel": func(targets) error { return loadsProgram() },
	"count in the kernel":            func(targets) error { return counts() },
}

// byDevice are ways out by a disk of the host's that it may read.
var byDevice = map[string]func(fd uintptr) error{
	"make a device writable": func(fd uintptr) error {
		readOnly := 0
		_, err := raw(unix.SYS_IOCTL, fd, unix.BLKROSET, uintptr(unsafe.Pointer(&readOnly)))
		return err
	},
	"discard what a device has": func(fd uintptr) error {
		extent := [2]uint64{0, 1 << 16}
		_, err := raw(unix.SYS_IOCTL, fd, unix.BLKDISCARD, uintptr(unsafe.Pointer(&extent)))
		return err
	},
	"clear a device": func(fd uintptr) error {
		extent := [2]uint64{0, 1 << 16}
		_, err := raw(unix.SYS_IOCTL, fd, unix.BLKZEROOUT, uintptr(unsafe.Pointer(&extent)))
		return err
	},
	"empty the host's cache of a device": func(fd uintptr) error { _, err := raw(unix.SYS_IOCTL, fd, unix.BLKFLSBUF, 0); return err },
	"change how the host reads a device": func(fd uintptr) error { _, err := raw(unix.SYS_IOCTL, fd, unix.BLKRASET, 64); return err },
}

func init() {
	for name, try := range byDevice {
		calls[name] = func(t targets) error {
			if fd := t.handedDevice(); fd >= 0 {
				return try(uintptr(fd))
			}
			f, err := os.OpenFile(t.Device, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			return try(f.Fd())
		}
	}
}

// handedDevice is the descriptor of the device that it was handed; -1: none was.
func (t targets) handedDevice() int {
	for fd := 3; fd < 1024; fd++ {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == t.DeviceNumber {
			return fd
		}
	}
	return -1
}

// lend makes a device of a file, where the host can.
func (t *targets) lend(test *testing.T, file string) {
	test.Helper()
	out, err := exec.CommandContext(test.Context(), "losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		test.Logf("no device of the host's is tried: %v, %s", err, out)
		return
	}
	device := strings.TrimSpace(string(out))
	test.Cleanup(func() {
		if out, err := exec.CommandContext(context.Background(), "losetup", "--detach", device).CombinedOutput(); err != nil {
			test.Errorf("%v: %s", err, out)
		}
	})
	var st unix.Stat_t
	ok(test, unix.Stat(device, &st))
	t.Device, t.DeviceNumber = device, st.Rdev
}

// disk is the device as the guest has it.
func (t *targets) disk() string {
	if t.Device == "" {
		return ""
	}
	return "<disk type='block'><driver type='raw'/><source dev='" + t.Device + "'/><target dev='vdb' bus='virtio'/><readonly/></disk>"
}

// userModeOnly is UFFD_USER_MODE_ONLY. With it every user may have a userfaultfd, whatever the host's setting.
const userModeOnly = 1

// tryCalls finds out which of the calls there are here.
func (t *targets) tryCalls(test *testing.T) {
	for name, call := range calls {
		if err := call(*t); err != nil {
			test.Logf("here is no way to %s: %v", name, err)
			continue
		}
		t.Calls = append(t.Calls, name)
	}
}

// share creates IPC objects of the host that every process may find.
func (t *targets) share(test *testing.T) {
	t.Segment = 0x10d9e000 + os.Getpid()
	if id, err := unix.SysvShmGet(t.Segment, os.Getpagesize(), unix.IPC_CREAT|0o666); err == nil {
		test.Cleanup(func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	}
	t.Queue = fmt.Sprintf("lodge-escape-%d", os.Getpid())
	if opensQueue(t.Queue, unix.O_RDONLY|unix.O_CREAT) == nil {
		test.Cleanup(func() {
			name, err := unix.BytePtrFromString(t.Queue)
			ok(test, err)
			_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
		})
	}
	if h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, t.VictimDisk, 0); err == nil {
		t.Handle, t.HandleType = h.Bytes(), h.Type()
	}
}

// opensHandle opens the victim's disk past all directories, by the file system that it has a directory on as well.
func (t targets) opensHandle() error {
	on, err := os.Open(t.Scratch)
	if err != nil {
		return err
	}
	defer on.Close()
	return closed(unix.OpenByHandleAt(int(on.Fd()), unix.NewFileHandle(t.HandleType, t.Handle), unix.O_RDONLY))
}

// storeRecovered tells that there is no such key from that nothing was looked for.
func storeRecovered(err error) error {
	if errors.Is(err, unix.ENOKEY) {
		return nil
	}
	return err
}

func makes(family, kind, protocol int) error {
	err := closed(unix.Socket(family, kind, protocol))
	if errors.Is(err, unix.ESOCKTNOSUPPORT) { // of this family, which there is
		return nil
	}
	return err
}

// closed closes the descriptor if it was opened.
func closed(fd int, err error) error {
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// raw makes a call that package unix has no name for.
func raw(call, a, b, c uintptr) (int, error) {
	result, _, errno := unix.Syscall(call, a, b, c)
	if errno != 0 {
		return -1, errno
	}
	return int(result), nil
}

func makesRing() error {
	var how [120]byte // struct io_uring_params
	return closed(raw(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&how)), 0))
}

// loadsProgram makes a table for programs of the kernel's, of one number.
func loadsProgram() error {
	table := struct{ kind, key, value, entries uint32 }{unix.BPF_MAP_TYPE_ARRAY, 4, 4, 1}
	return closed(raw(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&table)), unsafe.Sizeof(table)))
}

func counts() error {
	how := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Bits: unix.PerfBitDisabled}
	how.Size = uint32(unsafe.Sizeof(how))
	return closed(unix.PerfEventOpen(&how, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC))
}

func opensQueue(name string, how int) error {
	at, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(at)), uintptr(how|unix.O_CLOEXEC), 0o666, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

func seesLinks() error {
	links, err := net.Interfaces()
	if err == nil && len(links) < 2 {
		err = fmt.Errorf("there is %d", len(links))
	}
	return err
}

// withProcess does something by a descriptor of a process.
func withProcess(pid int, do func(fd int) error) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	return do(fd)
}

// enters has a thread that ends go where a process is.
func enters(process int) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		result <- unix.Setns(process, unix.CLONE_NEWUTS)
	}()
	return <-result
}

// leavesForUserNamespace is what makesUserNamespace does, by the other call that there is for it.
func leavesForUserNamespace() error {
	c := exec.Command("/bin/true") //nolint:noctx // ends on its own
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWUSER}
	return c.Run()
}

// locks locks more memory than QEMU needs for a guest without locked memory.
func locks() error {
	memory, err := unix.Mmap(-1, 0, 128<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	return errors.Join(unix.Mlock(memory), unix.Munmap(memory))
}
