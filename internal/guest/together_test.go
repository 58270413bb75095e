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
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Two things at once, of one guest.

// whileStopped has something done to a guest whose QEMU answers nothing, and something else beside it.
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

// What is stored of a guest while a change of the running one and of its definition is under way stays stored: the
// change is made to what is there then.
// Promise: F36
func TestAChangeUnderWayUndoesNoOther(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("busy", `<controller type='usb' model='qemu-xhci'/>`))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	path := filepath.Join(d.dir, "stick.raw")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	stick := `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='` + path + `'/><target dev='sda' bus='usb'/></disk>`
	both := guest.Affect{Live: true, Config: true}
	const memory = 32 << 20
	for title, c := range map[string]struct {
		change func() error
		made   func(*domain.Definition) bool
	}{
		"plugged": {
			func() error { return g.Attach(d.ctx(), stick, both) },
			func(def *domain.Definition) bool { return len(def.Devices.Disks) == 1 },
		},
		"balloon": {
			func() error { return g.SetMemory(d.ctx(), memory, both) },
			func(def *domain.Definition) bool { return def.CurrentMemory == memory },
		},
	} {
		err := d.whileStopped(g, c.change, func() {
			d.define(strings.Replace(small("busy", `<controller type='usb' model='qemu-xhci'/>`), "<name>", "<uuid>"+g.UUID()+"</uuid><title>"+title+"</title><name>", 1))
		})
		ok(t, err)
		if now := g.View().Inactive; now.Title != title || !c.made(now) {
			t.Errorf("%s: what is stored is called %q, and has the change: %v", title, now.Title, c.made(now))
		}
	}
}

// A save that was cut off by the loss of the monitor lets the guest go on when its QEMU answers again, also
// where somebody has tried once more meanwhile.
// Promise: F36
func TestATryAfterASaveThatWasCutOffLeavesNoGuestPaused(t *testing.T) {
	d := newDaemon(t)
	g := d.define(wordy("again"))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	read, saved := d.saving(g, filepath.Join(d.dir, "image"))
	pid := d.pid("again")
	ok(t, syscall.Kill(pid, syscall.SIGSTOP))
	g.LoseMonitor()
	read()
	if err := <-saved; err == nil {
		t.Error("the save succeeds without a monitor")
	}
	refused(t, g.Save(d.ctx(), filepath.Join(d.dir, "other"), guest.SaveOptions{}), fault.Busy, "was interrupted")
	refused(t, g.Dump(d.ctx(), filepath.Join(d.dir, "dump"), guest.DumpOptions{}), fault.Busy, "was interrupted")
	ok(t, syscall.Kill(pid, syscall.SIGCONT))
	d.settle(g, domain.Running)
	ok(t, g.ManagedSave(d.ctx(), guest.SaveOptions{}))
}

// A start that was asked for by a document waits while its guest is renamed: it is not of that guest any more.
// Promise: F36
func TestAGuestThatIsRenamedIsNotStartedByItsOldName(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("from"))
	ok(t, g.MakeTemplate(d.ctx()))
	held, hold, over := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	go func() {
		over <- g.EndTemplate(d.ctx(), func(context.Context) error { close(held); <-hold; return nil }) // and others wait
	}()
	<-held
	go func() { over <- g.Rename(d.ctx(), "to") }()
	eventually(t, "the rename waits", func() bool { return g.Waiting() == 1 })
	created := make(chan error, 1)
	go func() {
		_, err := d.Create(d.ctx(), strings.Replace(small("from"), "<name>", "<uuid>"+g.UUID()+"</uuid><name>", 1), guest.StartOptions{})
		created <- err
	}()
	eventually(t, "the start waits", func() bool { return g.Waiting() == 2 })
	close(hold)
	ok(t, <-over)
	ok(t, <-over)
	refused(t, <-created, fault.Exists, "'to' is already defined")
	d.want(g, domain.ShutOff, domain.ReasonUnknown)
}

// Who suspends a guest that is paused for a dump just then finds it suspended when the dump has ended.
// Promise: F36
func TestAGuestThatIsSuspendedInADumpStaysSo(t *testing.T) {
	d := newDaemon(t)
	g := d.define(wordy("dumped"))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	path := filepath.Join(d.dir, "dump")
	read, dumped, suspended := slowImage(t, path), make(chan error, 1), make(chan error, 1)
	go func() { dumped <- g.Dump(d.ctx(), path, guest.DumpOptions{}) }()
	d.settle(g, domain.Paused)
	go func() { suspended <- g.Suspend(d.ctx()) }()
	eventually(t, "it waits for the end of the dump", func() bool { return g.Waiting() == 1 })
	read()
	refused(t, <-dumped, fault.Failed, "") // a pipe is on no disk
	ok(t, <-suspended)
	d.want(g, domain.Paused, domain.ReasonUser)
}

// A picture whose client has gone while QEMU makes it does not count for ever among those that are not read.
// Promise: F36
func TestAPictureThatNobodyWaitsForIsNotCounted(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("pictured", `<video><model type='vga'/></video>`))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	ctx, leave := context.WithCancelCause(d.ctx())
	defer leave(nil)
	take := func() error {
		_, picture, err := g.Screenshot(ctx, 0)
		if err != nil {
			return err
		}
		return picture.Close()
	}
	_ = d.whileStopped(g, take, func() { leave(nil) }) // it may say that nobody waits
	eventually(t, "it is made", func() bool { return g.Job().Kind == domain.JobNone })
	if n := g.Unread(); n != 0 {
		t.Errorf("%d bytes of pictures are not read", n)
	}
}

// No save is begun while there is no monitor: begun then and going on by the next one, it would be made of what is known
// of the guest, and not of what QEMU has of a change that was cut off.
// Promise: F36
func TestNoSaveIsBegunWithoutAMonitor(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("unreached"))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	pid := d.pid("unreached")
	ok(t, syscall.Kill(pid, syscall.SIGSTOP))
	g.LoseMonitor()
	eventually(t, "the monitor is lost", func() bool { return !g.View().StuckSince.IsZero() })
	refused(t, g.ManagedSave(d.ctx(), guest.SaveOptions{}), fault.Unresponsive, "was lost")
	if job := g.View().LastJob; job.Kind != domain.JobNone {
		t.Errorf("a %s was begun: %s", job.Kind, job.Err)
	}
	ok(t, syscall.Kill(pid, syscall.SIGCONT))
	eventually(t, "it is saved when the monitor is back", func() bool { return g.ManagedSave(d.ctx(), guest.SaveOptions{}) == nil })
}

// What is said of a guest while it is being saved is not said to be so and then gone with the image.
// Promise: F36
func TestWordsAreNotLostByASave(t *testing.T) {
	d := newDaemon(t)
	g, title := d.define(small("named")), "told"
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	said, answered := make(chan error, 1), atomic.Bool{}
	ok(t, d.whileStopped(g, func() error { return g.ManagedSave(d.ctx(), guest.SaveOptions{}) }, func() {
		go func() {
			err := g.SetMetadata(d.ctx(), guest.Title, &title, "", "", guest.Affect{Live: true})
			answered.Store(true)
			said <- err
		}()
		eventually(t, "it waits, or is done", func() bool { return answered.Load() || g.Waiting() == 1 })
	}))
	err := <-said
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	if now := g.View().Active.Title; err == nil && now != title {
		t.Errorf("the guest's title is %q, and was said to be %q", now, title)
	}
}
