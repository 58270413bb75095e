package hostnet

import (
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Bridge is the settings of a new bridge.
type Bridge struct {
	Name  string
	MAC   net.HardwareAddr // the kernel picks one when nil
	MTU   int              // bytes; 0 follows the ports
	STP   bool             // spanning tree
	Delay time.Duration    // time a new port listens and learns; under STP at least 2 s, even if less is requested
}

// CreateBridge makes a bridge, down and without ports. It never takes over an
// existing link: fault.Exists says that the name is taken.
func CreateBridge(b Bridge) error {
	if err := CheckName(b.Name); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = b.Name, b.MAC, b.MTU
	err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	if errors.Is(err, syscall.EEXIST) {
		return fault.New(fault.Exists, fault.Interface, "network interface %q exists already", b.Name)
	}
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Interface, "cannot create bridge %q", b.Name)
	}
	if err := setTree(b); err != nil {
		return errors.Join(err, Remove(b.Name))
	}
	return nil
}

// setTree sets the forward delay and the spanning tree in one request: the
// kernel takes the delay first, while any value is still allowed.
func setTree(b Bridge) error {
	return change(b.Name, "set the spanning tree of", func(l netlink.Link) error {
		msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
		msg.Index = int32(l.Attrs().Index)
		var stp uint32
		if b.STP {
			stp = 1
		}
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
		data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
		data.AddRtAttr(nl.IFLA_BR_FORWARD_DELAY, nl.Uint32Attr(clockTicks(b.Delay)))
		data.AddRtAttr(nl.IFLA_BR_STP_STATE, nl.Uint32Attr(stp))
		req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		req.AddData(msg)
		req.AddData(info)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
}

// clockTicks is a duration in the 100ths of a second that the kernel counts
// bridge timers in towards user space.
func clockTicks(d time.Duration) uint32 { return uint32(d / (10 * time.Millisecond)) }
