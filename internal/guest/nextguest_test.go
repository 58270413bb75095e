package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const successor = "c0ffee00-0000-4000-8000-0000000000a5"

func succeeding() string {
	return strings.Replace(small("passing"), "<name>", "<uuid>"+successor+"</uuid><name>", 1)
}

// A transient guest ends, and the next one of its name can be created. That must not fail because the first one
// has gone.
func TestTransient_NextOfSameName(t *testing.T) {
	d := newDaemon(t)
	paused := launch.StartOptions{Paused: true}
	g, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), succeeding(), paused)
	ok(t, err)
	for range 4 {
		ended := make(chan error, 1)
		go func() { ended <- guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false) }()
		next, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), succeeding(), paused)
		for fault.Is(err, fault.WrongState) { // it came before the end
			next, err = guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), succeeding(), paused)
		}
		ok(t, err)
		ok(t, <-ended)
		if found, err := d.ByUUID(successor); err != nil || found != next || found.View().Active == nil {
			t.Fatalf("the next one is not there: %v, %v", found, err)
		}
		g = next
	}
}

// A client defines a guest while a transient one of the same name ends. The definition exists afterwards, for the
// same guest or a new one.
func TestDefine_WhileTransientEnds(t *testing.T) {
	d := newDaemon(t)
	for range 4 {
		g, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), succeeding(), launch.StartOptions{Paused: true})
		ok(t, err)
		ended := make(chan error, 1)
		go func() { ended <- guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false) }()
		for waiting := true; waiting; {
			select {
			case err := <-ended:
				ok(t, err)
				waiting = false
			default:
			}
			defined, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), succeeding(), false)
			ok(t, err)
			if found, err := d.ByUUID(successor); err != nil || found != defined || !found.View().Persistent {
				t.Fatalf("the defined guest is missing: %v, %v", found, err)
			}
			ok(t, guest.Undefine(d.ctx(), defined, scope.Daemon("a test"), guest.UndefineOptions{}))
		}
		if found, err := d.ByUUID(successor); !fault.Is(err, fault.NotFound) {
			t.Fatalf("something is left: %+v, %v", found.View(), err)
		}
	}
}

// A guest that ends with its client ends only in the instance of that client, and not in the next one.
func TestAutoDestroy_OwnInstanceOnly(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("run"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	destroy := guest.DestroyerOfThisRun(g)
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	ok(t, destroy(d.ctx()))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	ok(t, destroy(d.ctx()))
	d.want(g, domain.Paused, domain.ReasonUser)
	destroy = guest.DestroyerOfThisRun(g)
	ok(t, destroy(d.ctx()))
	d.want(g, domain.ShutOff, domain.ReasonDestroyed)
}

// A dump for a panic is of the instance that panicked: the next instance does not wait for it.
// Promise: F36
func TestDump_OwnInstanceOnly(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("panicked"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	dump, path := guest.DumperOfThisRun(g), filepath.Join(d.dir, "core")
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	refused(t, dump(d.ctx(), path), fault.WrongState, "has ended")
	if _, err := os.Lstat(path); err == nil {
		t.Error("the next run is dumped")
	}
	dump = guest.DumperOfThisRun(g)
	ok(t, dump(d.ctx(), path))
}
