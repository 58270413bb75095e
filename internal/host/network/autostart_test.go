package network

import (
	"os"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const lateBridge = "lodge-late"

// lateNetwork makes a network with autostart on a host that has just booted and where the bridge for the
// network's guests does not exist yet.
func lateNetwork(t *testing.T) *Network {
	t.Helper()
	_, n := lateNetworkOf(t)
	return n
}

func lateNetworkOf(t *testing.T) (*daemon, *Network) {
	t.Helper()
	d := newDaemon(t)
	s := d.open(t)
	n, err := s.Define(t.Context(), scope.Daemon("a test"), `<network><name>late</name><forward mode='bridge'/><bridge name='`+lateBridge+`'/></network>`, false)
	ok(t, err)
	ok(t, n.SetAutostart(t.Context(), scope.Daemon("a test"), true))
	s.Close()
	ok(t, os.RemoveAll(d.Run)) // as a boot does
	s = d.open(t)
	t.Cleanup(func() { endAll(t, s) })
	n, err = s.ByName("late")
	ok(t, err)
	if n.View().Active() {
		t.Fatal("a network without its bridge is active")
	}
	return d, n
}

func makeLateBridge(t *testing.T) {
	t.Helper()
	ok(t, hostnet.CreateBridge(hostnet.Bridge{Name: lateBridge}))
	t.Cleanup(func() { ok(t, hostnet.Remove(lateBridge)) })
}

// Promise: F7
func TestAutostart_BridgeAppearsLate(t *testing.T) {
	linktest.Need(t)
	awaitStarted(t, lateNetwork(t))
}

// The next daemon of the same boot continues the attempts, and does not start a network that was destroyed.
// Promise: F7
func TestAutostart_BridgeAppearsAfterRestart(t *testing.T) {
	linktest.Need(t)
	d, n := lateNetworkOf(t)
	n.networks.Close()
	s := d.open(t)
	n, err := s.ByName("late")
	ok(t, err)
	awaitStarted(t, n)
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	s.Close()
	n, err = d.open(t).ByName("late")
	ok(t, err)
	if n.autostartDue || n.View().Active() {
		t.Error("a network that its user has ended is started again")
	}
}

func awaitStarted(t *testing.T, n *Network) {
	t.Helper()
	makeLateBridge(t)
	for r := n.networks.Events.ReaderAfter(0); ; {
		e, _, err := r.Next(t.Context())
		ok(t, err)
		if e.Payload == (event.NetworkChange{Change: event.Started}) {
			return
		}
	}
}

// Promise: F7
func TestAutostart_EndsAfterUserAction(t *testing.T) {
	linktest.Need(t)
	unmarked, forgotten, ended := lateNetwork(t), lateNetwork(t), lateNetwork(t)
	ok(t, unmarked.SetAutostart(t.Context(), scope.Daemon("a test"), false))
	ok(t, forgotten.Undefine(t.Context(), scope.Daemon("a test")))
	makeLateBridge(t)
	if err := ended.Start(t.Context(), scope.Daemon("a test")); err != nil && !ended.View().Active() { // not just tried again
		t.Fatal(err)
	}
	ok(t, ended.Destroy(t.Context(), scope.Daemon("a test")))
	for what, n := range map[string]*Network{"not marked any more": unmarked, "forgotten": forgotten, "started and ended": ended} {
		if err := n.tryAutostart(t.Context(), scope.Daemon("a test")); !fault.Is(err, fault.Aborted) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
