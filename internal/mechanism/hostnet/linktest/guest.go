package linktest

import (
	"fmt"
	"net"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Guest is a network namespace that plays a guest, or another host, at the far end
// of a cable. Functions run in it on one thread that has left the test's namespace.
type Guest struct{ work chan func() }

// NewGuest makes a namespace with nothing but its loopback. It ends with the
// test.
func NewGuest(t testing.TB) *Guest {
	t.Helper()
	g := &Guest{work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for do := range g.work {
			do()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatalf("cannot make a network namespace: %v", err)
	}
	t.Cleanup(func() { close(g.work) })
	g.Do(func() {
		if err := setUp("lo"); err != nil {
			t.Error(err)
		}
	})
	return g
}

// Do runs something inside the namespace and waits for it. Sockets and
// processes made by it stay there. It must not end the test's goroutine, so
// t.Error rather than t.Fatal.
func (g *Guest) Do(inside func()) {
	done := make(chan struct{})
	g.work <- func() {
		defer close(done)
		inside()
	}
	<-done
}

// Cable lays a pair of links: near stays with the test, far goes to the guest
// with the hardware address given. Both are up, and gone with the test.
func (g *Guest) Cable(t testing.TB, near, far, mac string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = near
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: far}))
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(near); err == nil {
			_ = netlink.LinkDel(l)
		}
	})
	peer, err := netlink.LinkByName(far)
	must(t, err)
	if mac != "" {
		must(t, netlink.LinkSetHardwareAddr(peer, hardware(t, mac)))
	}
	tid := make(chan int, 1)
	g.Do(func() { tid <- unix.Gettid() })
	must(t, netlink.LinkSetNsPid(peer, <-tid))
	must(t, setUp(near))
	g.Do(func() {
		if err := setUp(far); err != nil {
			t.Error(err)
		}
	})
}

func hardware(t testing.TB, mac string) net.HardwareAddr {
	t.Helper()
	hw, err := net.ParseMAC(mac)
	must(t, err)
	return hw
}

func setUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("no link %s: %w", name, err)
	}
	return netlink.LinkSetUp(l)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
