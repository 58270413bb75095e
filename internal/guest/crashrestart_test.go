package guest_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// crash kills the guest's QEMU and waits until that is known.
func (d *daemon) crash(g *guest.Guest) (pid int) {
	d.t.Helper()
	events := d.events.Reader()
	pid = d.pid(g.Name())
	ok(d.t, syscall.Kill(pid, syscall.SIGKILL))
	until(d.t, events, event.Stopped, event.DetailCrashed)
	return pid
}

// waiting waits until the guest says that, and gives all that it says then.
func waiting(t *testing.T, g *guest.Guest, said string) (words string) {
	t.Helper()
	eventually(t, said, func() bool {
		words = strings.Join(g.View().Messages, "\n")
		return strings.Contains(words, said)
	})
	return words
}

// A guest with on_crash restart is started again when its QEMU is killed. The delay grows with each crash, and
// the guest's messages show it. Destroying the guest ends the restarts.
// Promise: F11
func TestRestart_AfterQEMUKilled(t *testing.T) {
	d := newDaemon(t)
	for _, policy := range []string{"restart", "coredump-restart"} {
		g := d.bear("revived-"+policy, "<on_crash>"+policy+"</on_crash>")
		for _, said := range []string{"crash 1 in a row", "crash 2 in a row"} {
			pid := d.crash(g)
			d.settle(g, domain.Running)
			if now := d.pid(g.Name()); now == pid {
				t.Errorf("%s runs on in process %d", g.Name(), pid)
			}
			if words := strings.Join(g.View().Messages, "\n"); !strings.Contains(words, "started again") || !strings.Contains(words, said) {
				t.Errorf("it runs again, and says: %s", words)
			}
		}
		d.crash(g)
		waits := waiting(t, g, "crash 3 in a row")
		ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
		for _, piece := range []string{"QEMU ended unexpectedly: was ended by signal 9", "crash 3 in a row", "after 2s", "virsh destroy " + g.Name()} {
			if !strings.Contains(waits, piece) {
				t.Errorf("the message of the pending restart does not contain %q: %s", piece, waits)
			}
		}
		if v := g.View(); v.State != domain.ShutOff || len(v.Messages) > 0 {
			t.Errorf("it was destroyed, and is %s: %q", v.State, v.Messages)
		}
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{})) // by its user: earlier crashes are forgotten
		d.crash(g)
		d.settle(g, domain.Running)
		if words := strings.Join(g.View().Messages, "\n"); !strings.Contains(words, "crash 1 in a row") {
			t.Errorf("after a start by its user it says: %s", words)
		}
		ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	}
}

// What a guest needs may be away for a while when it crashes: it is not given up for that.
// Promise: F11
func TestRestart_RetriesUntilResourcesExist(t *testing.T) {
	d := newDaemon(t)
	pool, disk := d.shelf()
	g := d.define(strings.Replace(small("patient", disk), "<devices>", "<on_crash>restart</on_crash><devices>", 1))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, pool.Stop(d.ctx(), scope.Daemon("a test")))
	d.crash(g)
	waiting(t, g, `pool "shelf" is not active`)
	ok(t, pool.Start(d.ctx(), scope.Daemon("a test"), volume.NoBuild))
	d.settle(g, domain.Running)
}

// A guest that should end with its client is not restarted after a crash: no client's end would end it.
// Promise: F36
func TestRestart_NotForAutoDestroy(t *testing.T) {
	d := newDaemon(t)
	d.boot = "first"
	d.reopen(func() {})
	g := d.define(strings.Replace(small("owned"), "<devices>", "<on_crash>restart</on_crash><devices>", 1))
	owned := launch.StartOptions{AutoDestroy: true, Owner: make(chan struct{})}
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), owned))
	d.crash(g)
	refused(t, guest.AbortJob(d.ctx(), g, scope.Daemon("a test")), fault.WrongState, "") // the steps after its end have begun by then
	if v := g.View(); v.StartPending || v.State.Active() || guest.IsDue(d.Registry, g.UUID) {
		t.Errorf("it is %s, and is to be started: %v", v.State, v.StartPending)
	}
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), owned))
	pid := d.pid("owned")
	d.reopen(func() {
		ok(t, syscall.Kill(pid, syscall.SIGKILL))
		_, err := syscall.Wait4(pid, nil, 0, nil)
		ok(t, err)
	})
	if guest.IsDue(d.Registry, g.UUID) {
		t.Error("it is to be started by the next daemon")
	}
}

// The next daemon starts what crashed while there was none, or waited to be started.
// Promise: F11
func TestRestart_CrashWhileNoDaemonRan(t *testing.T) {
	d := newDaemon(t)
	d.boot = "first"
	d.reopen(func() {})
	unseen := d.bear("unseen", "<on_crash>restart</on_crash>")
	waits := d.bear("waits", "<on_crash>restart</on_crash>")
	for range 2 {
		d.crash(waits)
		d.settle(waits, domain.Running)
	}
	d.crash(waits)
	waiting(t, waits, "after 2s")
	pid := d.pid("unseen")
	d.reopen(func() {
		ok(t, syscall.Kill(pid, syscall.SIGKILL))
		_, err := syscall.Wait4(pid, nil, 0, nil)
		ok(t, err)
	})
	guest.Autostart(d.ctx(), d.Registry)
	for _, g := range []*guest.Guest{d.again(unseen), d.again(waits)} {
		d.settle(g, domain.Running)
		ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	}
	d.reopen(func() {})
	guest.Autostart(d.ctx(), d.Registry)
	for _, g := range []*guest.Guest{d.again(unseen), d.again(waits)} {
		if v := g.View(); v.State.Active() || g.Job().Kind != domain.JobNone {
			t.Errorf("%s was destroyed, and is %s", v.Name, v.State)
		}
	}
}

// Promise: F11
func TestRestartPause_Doubles(t *testing.T) {
	for n, want := range map[int]time.Duration{
		1: 0, 2: time.Second, 3: 2 * time.Second, 4: 4 * time.Second, 10: 256 * time.Second, 11: 5 * time.Minute, 1 << 20: 5 * time.Minute,
	} {
		if got := guest.PauseBefore(n); got != want {
			t.Errorf("before the start that follows crash %d: %v, want %v", n, got, want)
		}
	}
}
