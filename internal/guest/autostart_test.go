package guest_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A daemon is killed during the autostart of a boot. The next one starts the guests that remain. It does not start
// guests that ran before: destroyed ones, ones that ended while no daemon ran, and ones without the mark now.
// Promise: F7
func TestAutostart_Interrupted(t *testing.T) {
	d := newDaemon(t)
	d.boot = "first"
	byName := map[string]*guest.Guest{}
	for _, name := range []string{"left", "ended", "done", "unmarked"} {
		byName[name] = d.define(small(name))
		ok(t, guest.SetAutostart(d.ctx(), byName[name], scope.Daemon("a test"), true))
	}
	ok(t, launch.Start(d.ctx(), byName["ended"], scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, guest.SetAutostart(d.ctx(), byName["unmarked"], scope.Daemon("a test"), false))
	pid := d.pid("ended")
	d.reopen(func() {
		ok(t, syscall.Kill(pid, syscall.SIGKILL))
		_, err := syscall.Wait4(pid, nil, 0, nil)
		ok(t, err)
		s, err := store.Open(filepath.Join(d.dir, "data"))
		ok(t, err)
		for _, name := range []string{"left", "ended", "unmarked"} {
			ok(t, s.Put(store.Kind{Name: "autostart", Version: 1}, byName[name].UUID, map[string]any{"Boot": "first"}))
		}
		ok(t, s.Put(store.Kind{Name: "boot", Version: 1}, "autostarted", "first"))
		ok(t, s.Close())
	})
	guest.Autostart(d.ctx(), d.Registry)
	left := d.again(byName["left"])
	d.settle(left, domain.Running)
	ok(t, guest.Destroy(d.ctx(), left, scope.Daemon("a test"), false))
	for range 2 { // this daemon has nothing more to start, and the next one neither
		guest.Autostart(d.ctx(), d.Registry)
		for name, g := range byName {
			g = d.again(g)
			if v := g.View(); v.State.Active() || g.Job().Kind != domain.JobNone {
				t.Errorf("%s is %s", name, v.State)
			}
		}
		d.reopen(func() {})
	}
	d.boot = "second"
	d.reopen(func() {})
	guest.Autostart(d.ctx(), d.Registry)
	for _, name := range []string{"left", "ended", "done"} {
		d.settle(d.again(byName[name]), domain.Running)
	}
	d.want(d.again(byName["unmarked"]), domain.ShutOff, domain.ReasonUnknown)
}

// A note of the last boot's autostart that is damaged has that of this boot not be made twice, and keeps no later
// boot from its own.
// Promise: F7
func TestAutostart_DamagedRecord(t *testing.T) {
	d := newDaemon(t)
	d.boot = "first"
	g := d.define(small("marked"))
	ok(t, guest.SetAutostart(d.ctx(), g, scope.Daemon("a test"), true))
	ok(t, d.store.Put(store.Kind{Name: "boot", Version: 1}, "autostarted", []int{1}))
	for _, boot := range []string{"first", "second"} {
		d.boot = boot
		d.reopen(func() {})
		if guest.Autostart(d.ctx(), d.Registry); boot == "first" {
			d.want(d.again(g), domain.ShutOff, domain.ReasonUnknown)
		}
	}
	d.settle(d.again(g), domain.Running)
}

// Promise: F7
func TestAutostart_FailureReported(t *testing.T) {
	d := newDaemon(t)
	d.boot, d.heard = "first", make(chan string, 1000)
	d.reopen(func() {})
	pool, disk := d.shelf()
	ok(t, guest.SetAutostart(d.ctx(), d.define(small("without-its-pool", disk)), scope.Daemon("a test"), true))
	ok(t, pool.Stop(d.ctx(), scope.Daemon("a test")))
	guest.Autostart(d.ctx(), d.Registry)
	d.logged("cannot start a guest that is marked for autostart", "without-its-pool", "is not active")
}

// What a guest needs may come later than the daemon when the host boots: its start is tried
// again, also by the next daemon, until its user gives that up, by any of the ways there are.
// Promise: F7
func TestAutostart_RetriesUntilResourcesExist(t *testing.T) {
	d := newDaemon(t)
	d.boot = "first"
	d.reopen(func() {})
	pool, disk := d.shelf()
	const waits = "autostart failed"
	byName := map[string]*guest.Guest{}
	for _, name := range []string{"patient", "destroyed", "undefined", "unmarked"} {
		byName[name] = d.define(small(name, disk))
		ok(t, guest.SetAutostart(d.ctx(), byName[name], scope.Daemon("a test"), true))
	}
	ok(t, pool.Stop(d.ctx(), scope.Daemon("a test")))
	guest.Autostart(d.ctx(), d.Registry)
	for name, g := range byName {
		if words := waiting(t, g, waits); !strings.Contains(words, `pool "shelf" is not active`) || !strings.Contains(words, "virsh destroy "+name) {
			t.Errorf("%s says: %s", name, words)
		}
	}
	ok(t, guest.Destroy(d.ctx(), byName["destroyed"], scope.Daemon("a test"), false))
	ok(t, guest.Undefine(d.ctx(), byName["undefined"], scope.Daemon("a test"), guest.UndefineOptions{}))
	ok(t, guest.SetAutostart(d.ctx(), byName["unmarked"], scope.Daemon("a test"), false))
	d.reopen(func() {})
	guest.Autostart(d.ctx(), d.Registry)
	patient := d.again(byName["patient"])
	waiting(t, patient, waits)
	pool, err := d.pools.ByName("shelf")
	ok(t, err)
	ok(t, pool.Start(d.ctx(), scope.Daemon("a test"), volume.NoBuild))
	d.settle(patient, domain.Running)
	if words := patient.View().Messages; len(words) > 0 {
		t.Errorf("it runs, and says: %q", words)
	}
	for _, name := range []string{"destroyed", "unmarked"} {
		if v := d.again(byName[name]).View(); v.State.Active() || len(v.Messages) > 0 {
			t.Errorf("%s is %s, and says: %q", name, v.State, v.Messages)
		}
	}
}
