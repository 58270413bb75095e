package hostnet

import (
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// MacvtapMode says how guests on one parent link see each other.
type MacvtapMode int

// The modes. VEPA, the zero value, is also libvirt's default.
const (
	VEPA        MacvtapMode = iota // all frames go out; the switch must send them back
	BridgeMode                     // guests on one parent reach each other directly
	Private                        // guests on one parent never reach each other
	Passthrough                    // one guest owns the parent and lends it its MAC
)

var macvtapModes = [...]netlink.MacvlanMode{
	VEPA: netlink.MACVLAN_MODE_VEPA, BridgeMode: netlink.MACVLAN_MODE_BRIDGE,
	Private: netlink.MACVLAN_MODE_PRIVATE, Passthrough: netlink.MACVLAN_MODE_PASSTHRU,
}

// Macvtap is the settings of a new macvtap.
type Macvtap struct {
	Name       string
	Parent     string // the host's link below
	Mode       MacvtapMode
	MAC        net.HardwareAddr // the guest's: the host's end filters on it
	MTU        int              // bytes; 0 follows the parent
	Queues     int              // 0 counts as 1
	VNetHeader bool
	Up         bool
}

// OpenMacvtap makes a macvtap and gives one file per queue, which the caller
// owns. The link stays until Remove. fault.Exists says that the name is taken.
func OpenMacvtap(m Macvtap) ([]*os.File, error) {
	if err := CheckName(m.Name); err != nil {
		return nil, err
	}
	parent, err := find(m.Parent)
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.HardwareAddr, attrs.MTU = m.Name, parent.Attrs().Index, m.MAC, m.MTU
	err = netlink.LinkAdd(&netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: attrs, Mode: macvtapModes[m.Mode]}})
	if errors.Is(err, syscall.EEXIST) {
		return nil, fault.New(fault.Exists, fault.Interface, "network interface %q exists already", m.Name)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Interface, "cannot create macvtap %q on %q", m.Name, m.Parent)
	}
	files, err := openMacvtap(m)
	if err == nil && m.Mode == Passthrough && m.MAC != nil {
		// The kernel makes it with the parent's address; setting it now sets
		// the parent's too, until Remove.
		err = SetMAC(m.Name, m.MAC)
	}
	if err == nil && m.Up {
		err = SetUp(m.Name)
	}
	if err != nil {
		closeAll(files)
		return nil, errors.Join(err, Remove(m.Name))
	}
	return files, nil
}

func openMacvtap(m Macvtap) ([]*os.File, error) {
	l, err := find(m.Name)
	if err != nil {
		return nil, err
	}
	device := "/dev/tap" + strconv.Itoa(l.Attrs().Index)
	var files []*os.File
	for range max(m.Queues, 1) {
		f, err := openMacvtapQueue(m, device)
		if err != nil {
			closeAll(files)
			return nil, fault.Wrap(err, fault.Failed, fault.Interface, "cannot open macvtap %q", m.Name)
		}
		files = append(files, f)
	}
	return files, nil
}

func openMacvtapQueue(m Macvtap, device string) (*os.File, error) {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: device, Err: err}
	}
	f := os.NewFile(uintptr(fd), device)
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if m.VNetHeader {
		flags |= unix.IFF_VNET_HDR
	}
	if m.Queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	if err = setInterface(fd, m.Name, flags); err == nil {
		err = belongs(fd, m.Name)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// belongs checks that a device node leads to the link it is opened for: nodes
// are numbered per network namespace and share one /dev.
func belongs(fd int, name string) error {
	req, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, req); err != nil {
		return err
	}
	if req.Name() != name {
		return fault.New(fault.Failed, fault.Interface, "its device node belongs to %q", req.Name())
	}
	return nil
}
