package volume

import (
	"os"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// latePool makes a pool with autostart on a host that has just booted and where the pool's folder does not
// exist yet.
func latePool(t *testing.T) (d *daemon, p *Pool, folder string) {
	d = newDaemon(t)
	p = d.dirPool("late")
	must(t, p.SetAutostart(t.Context(), scope.Daemon("a test"), true))
	folder = p.View().Target
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	must(t, os.Remove(folder))
	d.boot = "boot-2"
	d.restart()
	p, err := d.ByName("late")
	must(t, err)
	return d, p, folder
}

// started waits for a pool's start.
func (d *daemon) started(p *Pool) {
	d.t.Helper()
	for r := d.log.ReaderAfter(0); ; {
		e, _, err := r.Next(d.t.Context())
		must(d.t, err)
		if e.Payload == (event.PoolChange{Change: event.Started}) && e.Source.Name == p.Name() {
			return
		}
	}
}

// Promise: F7
func TestAutostart_TargetAppearsLate(t *testing.T) {
	d, p, folder := latePool(t)
	if p.View().State != Inactive {
		t.Fatalf("state %v of a pool without a folder", p.View().State)
	}
	must(t, p.SetAutostart(t.Context(), scope.Daemon("a test"), true)) // writes its record
	d.restart()                                                        // the next daemon continues the attempts
	p, err := d.ByName("late")
	must(t, err)
	must(t, os.Mkdir(folder, 0o700))
	d.started(p)
}

// Promise: F7
func TestAutostart_EndsAfterUserAction(t *testing.T) {
	for what, do := range map[string]func(p *Pool){
		"started and stopped": func(p *Pool) {
			if err := p.Start(t.Context(), scope.Daemon("a test"), NoBuild); err != nil {
				wantKind(t, err, fault.WrongState) // it was just tried again
			}
			must(t, p.Stop(t.Context(), scope.Daemon("a test")))
		},
		"not marked any more": func(p *Pool) { must(t, p.SetAutostart(t.Context(), scope.Daemon("a test"), false)) },
		"forgotten":           func(p *Pool) { must(t, p.Undefine(t.Context(), scope.Daemon("a test"))) },
	} {
		_, p, folder := latePool(t)
		if what == "started and stopped" {
			must(t, os.Mkdir(folder, 0o700))
		}
		do(p)
		if err := p.tryAutostart(t.Context()); !fault.Is(err, fault.Aborted) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
