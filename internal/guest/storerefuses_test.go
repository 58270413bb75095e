package guest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// misplace puts another file in the place of the store's, so that it takes no changes until find.
func (d *daemon) misplace() (find func()) {
	d.t.Helper()
	path := store.Path(filepath.Join(d.dir, "data"))
	text, err := os.ReadFile(path)
	ok(d.t, err)
	ok(d.t, os.Rename(path, path+".away"))
	ok(d.t, os.WriteFile(path, text, 0o600))
	return func() { d.t.Helper(); ok(d.t, os.Rename(path+".away", path)) }
}

// savedUnstored has a guest saved while the store refuses to say so.
func (d *daemon) savedUnstored(name string) (g *guest.Guest, find func()) {
	d.t.Helper()
	g = d.define(small(name))
	ok(d.t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	pid := d.pid(name)
	ok(d.t, syscall.Kill(pid, syscall.SIGSTOP))
	saved := make(chan error, 1)
	go func() {
		saved <- savestate.ManagedSave(context.WithoutCancel(d.ctx()), g, scope.Daemon("a test"), savestate.SaveOptions{})
	}()
	eventually(d.t, "a save under way", func() bool { return g.Job().Kind == domain.JobSave })
	find = d.misplace()
	ok(d.t, syscall.Kill(pid, syscall.SIGCONT))
	if err := <-saved; err == nil {
		d.t.Error("no message says that the store lacks the change")
	}
	d.settle(g, domain.ShutOff)
	return g, find
}

// The memory of a guest is kept, also where the store takes no change just when it was saved.
// Promise: F31
func TestManagedSave_StoredLate(t *testing.T) {
	d := newDaemon(t)
	g, find := d.savedUnstored("next")
	d.reopen(find)
	g = d.again(g)
	if !g.View().ManagedSave {
		t.Fatal("the next daemon does not know that the guest is saved")
	}
	d.reopen(func() {})
	ok(t, launch.Start(d.ctx(), d.again(g), scope.Daemon("a test"), launch.StartOptions{}))
	d.want(d.again(g), domain.Running, domain.ReasonRestored)

	g, find = d.savedUnstored("same")
	if err := launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}); err == nil {
		t.Error("a start takes away what tells of the image")
	}
	find()
	eventually(t, "what tells of the image is removed when the store does", func() bool { return gone(guest.RunDir(g)) })
	d.reopen(func() {})
	ok(t, launch.Start(d.ctx(), d.again(g), scope.Daemon("a test"), launch.StartOptions{}))
	d.want(d.again(g), domain.Running, domain.ReasonRestored)
}

// A guest that has started from its managed save image is not shown to have one, whenever the store accepts that
// change.
// Promise: F31
func TestManagedSave_ConsumedLate(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("used"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	find := d.misplace()
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if err := launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}); err == nil {
		t.Error("a start takes away what tells that the image is used up")
	}
	d.reopen(find)
	ok(t, launch.Start(d.ctx(), d.again(g), scope.Daemon("a test"), launch.StartOptions{}))
	d.want(d.again(g), domain.Running, domain.ReasonBooted)
}

// What a run has left that the host did not take back yet brings back nothing: neither a guest that
// was undefined since, nor an image that was removed.
// Promise: F31
func TestLeftRecord_RestoresNothing(t *testing.T) {
	d := newDaemon(t)
	saved := func(name string) *guest.Guest {
		g := d.define(small(name))
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		left := record(t, g)
		ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
		d.settle(g, domain.ShutOff)
		writeRecord(t, g, left)
		completeSave(t, g)
		return g
	}
	gone, bare := saved("gone"), saved("bare")
	ok(t, guest.Undefine(d.ctx(), gone, scope.Daemon("a test"), guest.UndefineOptions{ManagedSave: true}))
	ok(t, savestate.RemoveManagedSave(d.ctx(), bare, scope.Daemon("a test")))
	d.reopen(func() {})
	if _, err := d.ByUUID(gone.UUID); err == nil {
		t.Error("a guest that was undefined is back")
	}
	if d.again(bare).View().ManagedSave {
		t.Error("an image that was removed is said to be there")
	}
	ok(t, launch.Start(d.ctx(), d.again(bare), scope.Daemon("a test"), launch.StartOptions{}))
	d.want(d.again(bare), domain.Running, domain.ReasonBooted)
}

// A guest that its user has started and ended is not started with the host again by the next
// daemon, also where the store did not take that it ran at first.
// Promise: F7
func TestPendingStart_RemovedLate(t *testing.T) {
	d := newDaemon(t)
	d.boot = "first"
	d.reopen(func() {})
	pool, disk := d.shelf()
	g := d.define(small("seen-to", disk))
	ok(t, guest.SetAutostart(d.ctx(), g, scope.Daemon("a test"), true))
	ok(t, pool.Stop(d.ctx(), scope.Daemon("a test")))
	guest.Autostart(d.ctx(), d.Registry)
	due := func() bool {
		var noted any
		return d.store.Get(store.Kind{Name: "autostart", Version: 1}, g.UUID, &noted) == nil
	}
	eventually(t, "a start that waits", func() bool { return strings.Contains(strings.Join(g.View().Messages, " "), "autostart failed") })
	ok(t, pool.Start(d.ctx(), scope.Daemon("a test"), volume.NoBuild))
	find := d.misplace()
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if !due() {
		t.Error("the store takes changes")
	}
	find()
	eventually(t, "it is struck off", func() bool { return !due() })
}

// A rename that the store refuses is none to those who listen either.
func TestRename_StoreRefuses(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("before"))
	events := d.events.Reader()
	find := d.misplace()
	if err := guest.Rename(d.ctx(), g, scope.Daemon("a test"), "after"); err == nil {
		t.Error("it is renamed")
	}
	find()
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	e, _, err := events.Next(d.ctx())
	ok(t, err)
	if c, is := e.Payload.(event.DomainChange); e.Source.Name != "before" || is && c.Change == event.Undefined {
		t.Errorf("the first event is %+v", e)
	}
}

// An undefine that the store refuses leaves the running guest as it was, with the marks that it was started with.
// Promise: A1
func TestUndefine_StoreRefuses(t *testing.T) {
	d := newDaemon(t)
	of := func(team, more string) string {
		return strings.Replace(small("given"), "<os>", more+"<metadata><l:guest xmlns:l='"+provision.MarksNamespace+"'><l:label name='team' value='"+team+"'/></l:guest></metadata><os>", 1)
	}
	g := d.define(of("a", ""))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.define(of("b", "<uuid>"+g.UUID+"</uuid>"))
	find := d.misplace()
	if err := guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}); err == nil {
		t.Error("it is undefined")
	}
	find()
	for range 2 {
		if v := g.View(); !v.Persistent || !strings.Contains(v.Active.Metadata, `value="a"`) || !strings.Contains(v.Inactive.Metadata, `value="b"`) {
			t.Errorf("it runs with %s, and has %v", v.Active.Metadata, v.Inactive)
		}
		d.reopen(func() {})
		g = d.again(g)
	}
}

// A saved guest starts from its image only. After any other run, a later start from the image would damage the
// disks.
// Promise: F31
func TestManagedSave_OtherRunsRefused(t *testing.T) {
	d := newDaemon(t)
	doc := small("twice")
	g := d.define(doc)
	doc = strings.Replace(doc, "</name>", "</name><uuid>"+g.UUID+"</uuid>", 1)
	image := filepath.Join(d.dir, "image")
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), image, savestate.SaveOptions{}))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	_, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), doc, launch.StartOptions{})
	refused(t, err, fault.WrongState, "managed save image")
	_, err = guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), image, savestate.SaveOptions{})
	refused(t, err, fault.WrongState, "managed save image")
	ok(t, savestate.RemoveManagedSave(d.ctx(), g, scope.Daemon("a test")))
	_, err = guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), image, savestate.SaveOptions{})
	ok(t, err)
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	_, err = guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), doc, launch.StartOptions{})
	ok(t, err)
}

// A daemon is killed as it lets a guest run that came from its image: the guest runs under the next
// one, and does not go on from the image again.
// Promise: F31
func TestRestore_InterruptedAtResume(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("resumes"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	d.reopen(func() {
		r := record(t, g)
		r["Resuming"] = true
		r["State"].(map[string]any)["Phase"], r["State"].(map[string]any)["Reason"] = domain.Running, domain.ReasonRestored
		writeRecord(t, g, r)
		d.stored(g, func(r map[string]any) { r["ManagedSave"] = true })
	})
	g = d.again(g)
	eventually(t, "the guest runs", func() bool {
		answer, err := g.MonitorCommand(d.ctx(), scope.Daemon("a test"), `{"execute":"query-status"}`, false)
		return err == nil && strings.Contains(answer, `"running": true`) || strings.Contains(answer, `"running":true`)
	})
	d.want(g, domain.Running, domain.ReasonRestored)
	if g.View().ManagedSave {
		t.Error("it has its image still")
	}
	ok(t, guest.Suspend(d.ctx(), g, scope.Daemon("a test")))
	d.reopen(func() {})
	d.want(d.again(g), domain.Paused, domain.ReasonUser)
}

// Such a guest has ended by its own doing before the next daemon came, and is kept as it ended.
// Promise: F31
func TestRestore_InterruptedThenEnded(t *testing.T) {
	d := newDaemon(t)
	g := d.bear("ended", "<on_crash>preserve</on_crash>")
	d.awaitFirmware(g)
	d.poke(g, panics)
	d.settle(g, domain.Paused)
	d.reopen(func() {
		r := record(t, g)
		r["Resuming"] = true
		writeRecord(t, g, r)
	})
	g = d.again(g)
	eventually(t, "the restore is done with", func() bool { return record(t, g)["Resuming"] == nil })
	d.want(g, domain.Paused, domain.ReasonPanicked)
}

// A running guest loses a device while the store accepts no changes. A client that also changed the definition
// gets an error. Processors are not added in that case.
// Promise: F10
func TestChange_StoreRefuses(t *testing.T) {
	d := newDaemon(t)
	path := filepath.Join(d.dir, "stick.raw")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	stick := `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='` + path + `'/><target dev='sda' bus='usb'/></disk>`
	g := d.define(strings.Replace(small("kept", `<controller type='usb' model='qemu-xhci'/>`, stick), "<vcpu>1", "<vcpu current='1'>2", 1))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	both := machine.Affect{Live: true, Config: true}
	pid := d.pid("kept")
	ok(t, syscall.Kill(pid, syscall.SIGSTOP))
	told := make(chan error, 1)
	go func() { told <- hotplug.Detach(context.WithoutCancel(d.ctx()), g, scope.Daemon("a test"), stick, both) }()
	eventually(t, "a detach under way", func() bool { return g.Job().Kind == domain.JobModify })
	find := d.misplace()
	ok(t, syscall.Kill(pid, syscall.SIGCONT))
	if err := <-told; err == nil {
		t.Error("its client is told that it is done")
	}
	if v := g.View(); len(v.Active.Devices.Disks) != 0 || len(v.Inactive.Devices.Disks) != 1 {
		t.Errorf("it runs with %d disks and is stored with %d", len(v.Active.Devices.Disks), len(v.Inactive.Devices.Disks))
	}
	if err := hotplug.SetVCPUs(d.ctx(), g, scope.Daemon("a test"), 2, hotplug.VCPUOptions{Affect: both}); err == nil || g.View().Active.VCPUs.Current != 1 {
		t.Errorf("%v, and it has %d processors", err, g.View().Active.VCPUs.Current)
	}
	find()
	ok(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), stick, machine.Affect{Config: true}))
}
