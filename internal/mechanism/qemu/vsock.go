package qemu

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// Context ids of guests: those below are the hypervisor's and the host's.
const (
	firstCID = 3
	lastCID  = 1 << 16
)

// setGuestCID is the kernel's VHOST_VSOCK_SET_GUEST_CID.
const setGuestCID = 0x4008af60

// ClaimVSock takes a context id for a vsock: the given one, or the first free one, which is stored in it.
// The id stays taken as long as the file is open in any process. The caller closes it.
func ClaimVSock(v *device.VSock) (*os.File, error) {
	const path = "/dev/vhost-vsock"
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, unsupported("a vsock needs %s; load the kernel module vhost_vsock", path)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make a vsock")
	}
	if err = claim(f, v); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func claim(f *os.File, v *device.VSock) error {
	first, last := v.CID, v.CID
	if v.Auto == device.On {
		first, last = firstCID, lastCID
	}
	for cid := uint64(first); cid <= uint64(last); cid++ {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), setGuestCID, uintptr(unsafe.Pointer(&cid)))
		switch {
		case errno == 0:
			v.CID = uint(cid)
			return nil
		case !errors.Is(errno, unix.EADDRINUSE):
			return fault.Wrap(errno, fault.Failed, fault.Host, "cannot take vsock context id %d", cid)
		}
	}
	return fault.New(fault.Busy, fault.Device, "vsock context id %d is in use by another guest", last)
}
