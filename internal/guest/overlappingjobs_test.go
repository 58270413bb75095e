package guest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/console"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Two things at once, of one guest.

// whileStopped runs a request on a guest with a stopped QEMU, and another function beside it.
func (d *daemon) whileStopped(g *guest.Guest, do func() error, beside func()) error {
	d.t.Helper()
	pid := d.pid(g.Name())
	ok(d.t, syscall.Kill(pid, syscall.SIGSTOP))
	done := make(chan error, 1)
	go func() { done <- do() }()
	eventually(d.t, "it is under way", func() bool { return g.Job().Kind != domain.JobNone })
	beside()
	ok(d.t, syscall.Kill(pid, syscall.SIGCONT))
	return <-done
}

// A change of the running guest and its definition is in progress. Other changes that are stored in the meantime
// stay: the change is applied to the definition that is stored then.
// Promise: F36
func TestChange_KeepsConcurrent(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("busy", `<controller type='usb' model='qemu-xhci'/>`))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	path := filepath.Join(d.dir, "stick.raw")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	stick := `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='` + path + `'/><target dev='sda' bus='usb'/></disk>`
	both := machine.Affect{Live: true, Config: true}
	const memory = 32 << 20
	for title, c := range map[string]struct {
		change func() error
		made   func(*domain.Definition) bool
	}{
		"plugged": {
			func() error { return hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), stick, both) },
			func(def *domain.Definition) bool { return len(def.Devices.Disks) == 1 },
		},
		"balloon": {
			func() error { return hotplug.SetMemory(d.ctx(), g, scope.Daemon("a test"), memory, both) },
			func(def *domain.Definition) bool { return def.CurrentMemory == memory },
		},
	} {
		err := d.whileStopped(g, c.change, func() {
			d.define(strings.Replace(small("busy", `<controller type='usb' model='qemu-xhci'/>`), "<name>", "<uuid>"+g.UUID+"</uuid><title>"+title+"</title><name>", 1))
		})
		ok(t, err)
		if now := g.View().Inactive; now.Title != title || !c.made(now) {
			t.Errorf("%s: the stored definition has title %q, and the change: %v", title, now.Title, c.made(now))
		}
	}
}

// The loss of the monitor interrupts a save. The guest resumes when QEMU answers again, also if a client has tried
// another save in between.
// Promise: F36
func TestSave_RetryAfterInterruption(t *testing.T) {
	d := newDaemon(t)
	g := d.define(wordy("again"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	read, saved := d.saving(g, filepath.Join(d.dir, "image"))
	pid := d.pid("again")
	ok(t, syscall.Kill(pid, syscall.SIGSTOP))
	guest.LoseMonitor(g)
	read()
	if err := <-saved; err == nil {
		t.Error("the save succeeds without a monitor")
	}
	refused(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), filepath.Join(d.dir, "other"), savestate.SaveOptions{}), fault.Busy, "was interrupted")
	refused(t, savestate.Dump(d.ctx(), g, scope.Daemon("a test"), filepath.Join(d.dir, "dump"), savestate.DumpOptions{}), fault.Busy, "was interrupted")
	ok(t, syscall.Kill(pid, syscall.SIGCONT))
	d.settle(g, domain.Running)
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
}

// A start that was asked for by a document waits while its guest is renamed: it is not of that guest any more.
// Promise: F36
func TestRename_OldNameNotStarted(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("from"))
	ok(t, g.MakeTemplate(d.ctx(), scope.Daemon("a test")))
	held, hold, over := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	go func() {
		over <- g.EndTemplate(d.ctx(), scope.Daemon("a test"), func(context.Context) error { close(held); <-hold; return nil }) // and others wait
	}()
	<-held
	go func() { over <- guest.Rename(d.ctx(), g, scope.Daemon("a test"), "to") }()
	eventually(t, "the rename waits", func() bool { return guest.Waiting(g) == 1 })
	created := make(chan error, 1)
	go func() {
		_, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), strings.Replace(small("from"), "<name>", "<uuid>"+g.UUID+"</uuid><name>", 1), launch.StartOptions{})
		created <- err
	}()
	eventually(t, "the start waits", func() bool { return guest.Waiting(g) == 2 })
	close(hold)
	ok(t, <-over)
	ok(t, <-over)
	refused(t, <-created, fault.Exists, "'to' is already defined")
	d.want(g, domain.ShutOff, domain.ReasonUnknown)
}

// Who suspends a guest that is paused for a dump just then finds it suspended when the dump has ended.
// Promise: F36
func TestSuspend_DuringDump(t *testing.T) {
	d := newDaemon(t)
	g := d.define(wordy("dumped"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	path := filepath.Join(d.dir, "dump")
	read, dumped, suspended := slowImage(t, path), make(chan error, 1), make(chan error, 1)
	go func() { dumped <- savestate.Dump(d.ctx(), g, scope.Daemon("a test"), path, savestate.DumpOptions{}) }()
	d.settle(g, domain.Paused)
	go func() { suspended <- guest.Suspend(d.ctx(), g, scope.Daemon("a test")) }()
	eventually(t, "it waits for the end of the dump", func() bool { return guest.Waiting(g) == 1 })
	read()
	refused(t, <-dumped, fault.Failed, "") // a pipe is on no disk
	ok(t, <-suspended)
	d.want(g, domain.Paused, domain.ReasonUser)
}

// If the client leaves while QEMU makes its screenshot, the picture is not counted as unread forever.
// Promise: F36
func TestScreenshot_AbandonedNotCounted(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("pictured", `<video><model type='vga'/></video>`))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ctx, leave := context.WithCancelCause(d.ctx())
	defer leave(nil)
	take := func() error {
		_, picture, err := console.Screenshot(ctx, g, scope.Daemon("a test"), 0)
		if err != nil {
			return err
		}
		return picture.Close()
	}
	_ = d.whileStopped(g, take, func() { leave(nil) }) // it may report that no client waits
	eventually(t, "it is made", func() bool { return g.Job().Kind == domain.JobNone })
	if n := guest.Unread(g); n != 0 {
		t.Errorf("%d bytes of pictures are not read", n)
	}
}

// No save begins without a monitor. Over the next connection it would store the daemon's view of the guest, which
// may differ from QEMU's after an interrupted change.
// Promise: F36
func TestSave_MonitorLost(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("unreached"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	pid := d.pid("unreached")
	ok(t, syscall.Kill(pid, syscall.SIGSTOP))
	guest.LoseMonitor(g)
	eventually(t, "the monitor is lost", func() bool { return !g.View().StuckSince.IsZero() })
	refused(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}), fault.Unresponsive, "was lost")
	if job := g.View().LastJob; job.Kind != domain.JobNone {
		t.Errorf("a %s was begun: %s", job.Kind, job.Err)
	}
	ok(t, syscall.Kill(pid, syscall.SIGCONT))
	eventually(t, "it is saved when the monitor is back", func() bool {
		return savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}) == nil
	})
}

// A description that is set during a save is not confirmed and then lost with the image.
// Promise: F36
func TestSave_KeepsMetadata(t *testing.T) {
	d := newDaemon(t)
	g, title := d.define(small("named")), "told"
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	said, answered := make(chan error, 1), atomic.Bool{}
	ok(t, d.whileStopped(g, func() error {
		return savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{})
	}, func() {
		go func() {
			err := guest.SetMetadata(d.ctx(), g, scope.Daemon("a test"), guest.Title, &title, "", "", machine.Affect{Live: true})
			answered.Store(true)
			said <- err
		}()
		eventually(t, "it waits, or is done", func() bool { return answered.Load() || guest.Waiting(g) == 1 })
	}))
	err := <-said
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	if now := g.View().Active.Title; err == nil && now != title {
		t.Errorf("the guest's title is %q, and was said to be %q", now, title)
	}
}
