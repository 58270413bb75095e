package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// MaxName is the longest name the kernel takes for a link.
const MaxName = unix.IFNAMSIZ - 1

// CheckName refuses a name that the kernel would not take for a link.
func CheckName(name string) error {
	if name == "" || name == "." || name == ".." {
		return fault.New(fault.Invalid, fault.Interface, "%q is not a valid name of a link", name)
	}
	if len(name) > MaxName {
		return fault.New(fault.Invalid, fault.Interface, "the name %q of a link is longer than %d characters", name, MaxName)
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c >= 0x7f || c == '/' || c == ':' || c == '%' {
			return fault.New(fault.Invalid, fault.Interface, "the name %q of a link holds a character that the kernel refuses", name)
		}
	}
	return nil
}

// Link is one network interface as the kernel has it at one moment.
type Link struct {
	Index  int
	Name   string
	Kind   string // the kernel's word: bridge, tuntap, macvtap, veth, device, ...
	MAC    net.HardwareAddr
	MTU    int
	Up     bool
	Master int // index of the bridge it is a port of; 0 for none
	Parent int // index of the link that a macvtap is on; 0 for none
	Counters
}

// Counters are the traffic of a link since it was made, from the host's side:
// data that a guest sends is received here.
type Counters struct {
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

func describe(l netlink.Link) Link {
	a := l.Attrs()
	out := Link{
		Index: a.Index, Name: a.Name, Kind: l.Type(), MAC: a.HardwareAddr,
		MTU: a.MTU, Up: a.Flags&net.FlagUp != 0, Master: a.MasterIndex, Parent: a.ParentIndex,
	}
	if s := a.Statistics; s != nil {
		out.Counters = Counters{
			RxBytes: s.RxBytes, RxPackets: s.RxPackets, RxErrors: s.RxErrors, RxDropped: s.RxDropped,
			TxBytes: s.TxBytes, TxPackets: s.TxPackets, TxErrors: s.TxErrors, TxDropped: s.TxDropped,
		}
	}
	return out
}

// ByName gives one link, or fault.NotFound.
func ByName(name string) (Link, error) {
	l, err := find(name)
	if err != nil {
		return Link{}, err
	}
	return describe(l), nil
}

func find(name string) (netlink.Link, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	l, err := netlink.LinkByName(name)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return nil, fault.New(fault.NotFound, fault.Interface, "no network interface with name %q", name)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Interface, "cannot look up network interface %q", name)
	}
	return l, nil
}

// All gives every link with its counters in one request.
func All() ([]Link, error) {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot list network interfaces")
	}
	out := make([]Link, len(links))
	for i, l := range links {
		out[i] = describe(l)
	}
	return out, nil
}

// dump repeats a listing if the kernel reports that it changed during the read.
// It returns the last try even so, because on a busy host every listing may change.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	const tries = 5
	var all []T
	var err error
	for range tries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, nil
}

// change looks a link up and does one thing to it.
func change(name, what string, do func(netlink.Link) error) error {
	l, err := find(name)
	if err != nil {
		return err
	}
	return fault.Wrap(do(l), fault.Failed, fault.Interface, "cannot %s %q", what, name)
}

// SetUp brings a link up.
func SetUp(name string) error { return change(name, "bring up", netlink.LinkSetUp) }

// SetMTU sets the largest packet of a link in bytes.
func SetMTU(name string, bytes int) error {
	return change(name, "set the MTU of", func(l netlink.Link) error { return netlink.LinkSetMTU(l, bytes) })
}

// SetMAC sets the hardware address of a link.
func SetMAC(name string, mac net.HardwareAddr) error {
	return change(name, "set the MAC address of", func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac) })
}

// SetBridge makes a link a port of a bridge, moving it from another if need be.
func SetBridge(name, bridge string) error {
	master, err := find(bridge)
	if err != nil {
		return err
	}
	return change(name, "attach to bridge "+bridge, func(l netlink.Link) error { return netlink.LinkSetMaster(l, master) })
}

// ClearBridge takes a link out of the bridge it is a port of.
func ClearBridge(name string) error {
	return change(name, "detach from its bridge", netlink.LinkSetNoMaster)
}

// SetIsolated keeps a port of a bridge from talking to other isolated ports.
func SetIsolated(name string, on bool) error {
	return change(name, "isolate", func(l netlink.Link) error { return netlink.LinkSetIsolated(l, on) })
}

// Remove deletes a link. A missing link is no error.
func Remove(name string) error { return RemoveSame(name, 0) }

// RemoveSame is Remove for the link with this index: another link that has the name
// by now stays. Index 0 means any.
func RemoveSame(name string, index int) error {
	l, err := find(name)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if index != 0 && l.Attrs().Index != index {
		return nil
	}
	err = netlink.LinkDel(l)
	if errors.Is(err, syscall.ENODEV) {
		return nil
	}
	return fault.Wrap(err, fault.Failed, fault.Interface, "cannot remove network interface %q", name)
}

// AddAddress gives a link an address with its prefix. IPv6 addresses are usable
// at once, without duplicate detection: a fresh bridge has no other host on it.
func AddAddress(name string, addr netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipNet(addr)}
	if addr.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	} else if addr.Bits() < 31 {
		a.Broadcast = broadcast(addr)
	}
	return change(name, "add address "+addr.String()+" to", func(l netlink.Link) error { return netlink.AddrAdd(l, a) })
}

// Addresses gives the addresses of a link with their prefixes.
func Addresses(name string) ([]netip.Prefix, error) {
	l, err := find(name)
	if err != nil {
		return nil, err
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Interface, "cannot list the addresses of %q", name)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), ok
}

func broadcast(p netip.Prefix) net.IP {
	ip := p.Addr().As4()
	mask := net.CIDRMask(p.Bits(), 32)
	for i := range ip {
		ip[i] |= ^mask[i]
	}
	return ip[:]
}
