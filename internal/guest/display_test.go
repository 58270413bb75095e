package guest_test

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// portOf is where a running guest's definition says that its display listens.
func portOf(g *guest.Guest) string { return strconv.Itoa(g.View().Active.Devices.Graphics[0].Port) }

// freePort returns a port that was free on this host a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", ":0")
	ok(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	ok(t, err)
	ok(t, l.Close())
	return port
}

// security connects to a VNC display and returns its authentication types; nil: no display listens there.
func security(t *testing.T, host, port string) []byte {
	t.Helper()
	c, err := (&net.Dialer{Timeout: time.Minute}).DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
	if err != nil {
		t.Log(err)
		return nil
	}
	defer func() { _ = c.Close() }()
	ok(t, c.SetDeadline(time.Now().Add(time.Minute)))
	in := bufio.NewReader(c)
	greeting, err := in.ReadString('\n')
	ok(t, err)
	_, err = c.Write([]byte(greeting))
	ok(t, err)
	n, err := in.ReadByte()
	ok(t, err)
	ways, err := in.Peek(int(n))
	ok(t, err)
	return ways
}

const thisHost = "127.0.0.1"

// Ways of letting clients in to a VNC display.
const byNothing, byPassword = 1, 2

func serves(t *testing.T, when, port string, want byte) {
	t.Helper()
	if ways := security(t, thisHost, port); !slices.Equal(ways, []byte{want}) {
		t.Errorf("%s the display at port %s lets clients in by %v, not %d", when, port, ways, want)
	}
}

// A VNC display listens where its definition says, also under the next daemon and after a restore, and its
// QEMU has no network.
// Promise: I1
func TestDisplay_WithoutHostNetwork(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.define(small("shown", `<graphics type='vnc' port='-1' autoport='yes' passwd='secret' keymap='de' sharePolicy='force-shared'/><video><model type='vga'/></video>`))
	apart := func() {
		t.Helper()
		if v := g.View(); (kernel.Root{}).SharesNetwork(v.PID) || !slices.Contains(v.Isolation, "network") {
			t.Errorf("it is in the host's network, or it is not told: %v", v.Isolation)
		}
	}
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	apart()
	port := portOf(g)
	serves(t, "after the start", port, byPassword)

	d.reopen(func() {})
	g = d.again(g)
	serves(t, "under the next daemon", port, byPassword)
	ok(t, hotplug.Update(d.ctx(), g, scope.Daemon("a test"), `<graphics type='vnc' port='-1' autoport='yes' passwd='other' keymap='de' sharePolicy='force-shared'/>`, machine.Affect{Live: true}, false))
	serves(t, "with another password", port, byPassword)
	refused(t, hotplug.Update(d.ctx(), g, scope.Daemon("a test"), `<graphics type='vnc' port='-1' autoport='yes' passwd='ninechars' keymap='de' sharePolicy='force-shared'/>`, machine.Affect{Live: true}, false),
		fault.Unsupported, "VNC password is 9 characters long, only 8 permitted")

	second := d.define(small("second", `<graphics type='vnc' port='`+port+`'/>`))
	refused(t, launch.Start(d.ctx(), second, scope.Daemon("a test"), launch.StartOptions{}), fault.Busy, "port "+port+" of 127.0.0.1, requested for the vnc display, is in use; choose another port")

	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	if ways := security(t, thisHost, port); ways != nil {
		t.Error("something listens when the guest has ended")
	}
	ok(t, launch.Start(d.ctx(), second, scope.Daemon("a test"), launch.StartOptions{}))
	serves(t, "on a port of its own", port, byNothing)
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	apart()
	if portOf(g) == port {
		t.Errorf("two displays listen on port %s", port)
	}
	serves(t, "after the restore", portOf(g), byPassword)
}

// A display listens on all addresses that a name has, and on no other.
// Promise: A10
func TestDisplay_ListenAddresses(t *testing.T) {
	d := newDaemonOf(t, true)
	hasIPv6 := false
	if l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "[::1]:0"); err == nil {
		hasIPv6 = true
		_ = l.Close()
	}
	names, err := net.DefaultResolver.LookupHost(t.Context(), "localhost")
	ok(t, err)
	for address, on := range map[string][]string{
		"127.0.0.2": {"127.0.0.2"}, "0.0.0.0": {"127.0.0.1", "127.0.0.2"}, "::1": {"::1"}, "::": {"127.0.0.1", "127.0.0.2", "::1"}, "localhost": names,
	} {
		if strings.Contains(address, ":") && !hasIPv6 {
			continue
		}
		// Not one from 5900 on, which others' displays may have at another address.
		g := d.define(small("at-"+strings.ReplaceAll(address, ":", "-"), `<graphics type='vnc' port='`+freePort(t)+`' listen='`+address+`'/>`))
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		for _, host := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
			if ways := security(t, host, portOf(g)); slices.Contains(on, host) != (ways != nil) && (hasIPv6 || host != "::1") {
				t.Errorf("a display on %s lets clients of %s in by %v", address, host, ways)
			}
		}
		ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	}
}

// A listener that QEMU opens itself is in the host's network, and the daemon reports that.
// Promise: I1
func TestDisplay_NeedsHostNetwork(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.define(small("web", fmt.Sprintf(`<graphics type='vnc' autoport='yes' websocket='%s'/>`, freePort(t))))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	serves(t, "beside a websocket", portOf(g), byNothing)
	if v := g.View(); slices.Contains(v.Isolation, "network") {
		t.Errorf("it is said to have no network of the host's: %v", v.Isolation)
	}
}
