package hostnet

import (
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// maxQueues is the kernel's bound on the queues of one tap or macvtap.
const maxQueues = 256

// Tap is the settings of a new tap.
type Tap struct {
	Name       string
	Queues     int              // 0 counts as 1
	VNetHeader bool             // frames carry the virtio header (offloads)
	Persistent bool             // stays when the last file is closed
	Owner      int              // user that may open a persistent tap; 0 for root only
	MAC        net.HardwareAddr // of the host's end; nil keeps the kernel's
	MTU        int              // bytes; 0 keeps the kernel's
	Bridge     string           // bridge to attach to; "" for none
	Isolated   bool             // port is isolated from other isolated ports
	Up         bool
	Existing   bool // open a persistent tap that is there already
}

// OpenTransientTap makes a tap and returns one file per queue, which the caller owns. A tap
// that is not persistent ends with its last file. If any link has the name, the
// error is fault.Exists. The kernel decides that, so two callers that look for a
// free name never share one.
func OpenTransientTap(t Tap) ([]*os.File, error) {
	if err := CheckName(t.Name); err != nil {
		return nil, err
	}
	queues := max(t.Queues, 1)
	if queues > maxQueues {
		return nil, fault.New(fault.Invalid, fault.Interface, "tap %q cannot have %d queues; the kernel supports %d", t.Name, queues, maxQueues)
	}
	if t.Existing {
		if _, err := find(t.Name); err != nil {
			return nil, err
		}
	}
	files := make([]*os.File, 0, queues)
	for i := range queues {
		f, err := openQueue(t, i == 0 && !t.Existing, queues > 1)
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, f)
	}
	failpoint.Reach("link.tap")
	if err := settleTap(t, files[0]); err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

func openQueue(t Tap, first, multi bool) (*os.File, error) {
	const device = "/dev/net/tun"
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.Wrap(&os.PathError{Op: "open", Path: device, Err: err}, fault.Failed, fault.Interface, "cannot create tap %q", t.Name)
	}
	f := os.NewFile(uintptr(fd), device)
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if t.VNetHeader {
		flags |= unix.IFF_VNET_HDR
	}
	if multi {
		flags |= unix.IFF_MULTI_QUEUE
	}
	if first {
		flags |= unix.IFF_TUN_EXCL
	}
	err = setInterface(fd, t.Name, flags)
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	// The kernel answers EBUSY for a tap of that name, which may have gone by now, and
	// EINVAL for another kind of link, and for more.
	taken := errors.Is(err, syscall.EBUSY)
	if errors.Is(err, syscall.EINVAL) {
		_, e := find(t.Name)
		taken = e == nil
	}
	if first && taken {
		return nil, fault.New(fault.Exists, fault.Interface, "network interface %q exists already", t.Name)
	}
	return nil, fault.Wrap(err, fault.Failed, fault.Interface, "cannot create tap %q", t.Name)
}

func setInterface(fd int, name string, flags uint16) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(flags)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
}

func settleTap(t Tap, f *os.File) error {
	if t.Persistent {
		if err := persist(t, f); err != nil {
			return err
		}
	}
	err := settle(t)
	if err != nil && t.Persistent {
		err = errors.Join(err, Remove(t.Name))
	}
	return err
}

func persist(t Tap, f *os.File) error {
	fd := int(f.Fd())
	err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, t.Owner)
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
	}
	return fault.Wrap(err, fault.Failed, fault.Interface, "cannot make tap %q persistent", t.Name)
}

// settle makes the remaining settings over netlink once a tap exists.
func settle(t Tap) error {
	if t.MAC != nil {
		if err := SetMAC(t.Name, t.MAC); err != nil {
			return err
		}
	}
	if t.MTU != 0 {
		if err := SetMTU(t.Name, t.MTU); err != nil {
			return err
		}
	}
	if t.Bridge != "" {
		if err := SetBridge(t.Name, t.Bridge); err != nil {
			return err
		}
		if t.Isolated {
			if err := SetIsolated(t.Name, true); err != nil {
				return err
			}
		}
	}
	if t.Up {
		return SetUp(t.Name)
	}
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// OpenVHost opens the kernel's network back end once per queue; the caller owns
// the files. On a host without it the error is fault.Unsupported with the reason:
// the caller falls back on QEMU's own back end, or refuses.
func OpenVHost(queues int) ([]*os.File, error) {
	const device = "/dev/vhost-net"
	var files []*os.File
	for range queues {
		f, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			closeAll(files)
			return nil, fault.Wrap(err, fault.Unsupported, fault.Interface, "vhost-net is not available on this host (load the module vhost_net)")
		}
		files = append(files, f)
	}
	return files, nil
}
