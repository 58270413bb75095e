package guest

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// Packets that leave the host through a tap are received by the guest. Packets that leave through a macvtap are
// sent by it, also if its network chose the macvtap.
func TestNICStats_DirectionOfGuest(t *testing.T) {
	if unix.Getuid() != 0 {
		t.Skip("makes links")
	}
	linktest.NewGuest(t).Do(func() {
		port := &netlink.Veth{LinkAttrs: linkNamed("port"), PeerName: "far"}
		direct := &netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: linkNamed("direct")}}
		if err := netlink.LinkAdd(port); err != nil {
			t.Error(err)
			return
		}
		for _, l := range []netlink.Link{port, &netlink.Veth{LinkAttrs: linkNamed("far")}, direct} {
			if l == direct {
				direct.ParentIndex = port.Index
				if err := netlink.LinkAdd(direct); errors.Is(err, unix.EOPNOTSUPP) {
					return // not each kernel has macvtaps
				}
			}
			if err := netlink.LinkSetUp(l); err != nil {
				t.Error(err)
				return
			}
		}
		meter, err := hostnet.OpenMeter()
		if err != nil {
			t.Error(err)
			return
		}
		defer meter.Close()
		r := newRegistry(machine.Config{Log: slog.New(slog.DiscardHandler)})
		r.Meter = meter
		sendFrames(t, port)
		sendFrames(t, direct)
		for _, n := range []*device.NIC{{Type: "network", Target: "port"}, {Type: "network", Target: "direct"}, {Type: "direct", Target: "direct"}} {
			first, _ := statistics.NICStats(r, n, machine.Counted{})
			again, _ := statistics.NICStats(r, n, first.Counted)
			for _, s := range []machine.NICStats{first, again} {
				if sent := n.Target == "direct"; (s.TxBytes >= manyBytes) != sent || (s.RxBytes >= manyBytes) == sent {
					t.Errorf("%s on %s: received %d, sent %d", n.Type, n.Target, s.RxBytes, s.TxBytes)
				}
			}
		}
	})
}

// manyBytes are more than the host's own protocols send meanwhile.
const manyBytes = 50 * 1000

func linkNamed(name string) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return attrs
}

// sendFrames has the host send so many bytes of no protocol through a link.
func sendFrames(t *testing.T, l netlink.Link) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = unix.Close(fd) }()
	frame := make([]byte, 1000)
	frame[12], frame[13] = 0x88, 0xb5 // for local experiments
	for range manyBytes / len(frame) {
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Halen: 6}); err != nil {
			t.Error(err)
		}
	}
}
