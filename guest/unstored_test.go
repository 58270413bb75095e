package guest_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/guest"
	"github.com/lodge-kvm/lodge/store"
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
	ok(d.t, g.Start(d.ctx(), guest.StartOptions{}))
	pid := d.pid(name)
	ok(d.t, syscall.Kill(pid, syscall.SIGSTOP))
	saved := make(chan error, 1)
	go func() { saved <- g.ManagedSave(context.WithoutCancel(d.ctx()), guest.SaveOptions{}) }()
	eventually(d.t, "a save under way", func() bool { return g.Job().Kind == domain.JobSave })
	find = d.misplace()
	ok(d.t, syscall.Kill(pid, syscall.SIGCONT))
	if err := <-saved; err == nil {
		d.t.Error("nobody is told that the store does not know")
	}
	d.settle(g, domain.ShutOff)
	return g, find
}

// The memory of a guest is kept, also where the store takes no change just when it was saved.
func TestAManagedSaveThatIsStoredLate(t *testing.T) {
	d := newDaemon(t)
	g, find := d.savedUnstored("next")
	d.reopen(find)
	g = d.again(g)
	if !g.View().ManagedSave {
		t.Fatal("the next daemon does not know that the guest is saved")
	}
	d.reopen(func() {})
	ok(t, d.again(g).Start(d.ctx(), guest.StartOptions{}))
	d.want(d.again(g), domain.Running, domain.ReasonRestored)

	g, find = d.savedUnstored("same")
	if err := g.Start(d.ctx(), guest.StartOptions{}); err == nil {
		t.Error("a start takes away what tells of the image")
	}
	find()
	eventually(t, "what tells of the image is removed when the store does", func() bool { return gone(g.RunDir()) })
	d.reopen(func() {})
	ok(t, d.again(g).Start(d.ctx(), guest.StartOptions{}))
	d.want(d.again(g), domain.Running, domain.ReasonRestored)
}

// A guest that has gone on from its image is not said to have one, whenever the store takes that.
func TestAManagedSaveThatIsUsedUpLate(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("used"))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	ok(t, g.ManagedSave(d.ctx(), guest.SaveOptions{}))
	find := d.misplace()
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	ok(t, g.Destroy(d.ctx(), false))
	d.reopen(find)
	ok(t, d.again(g).Start(d.ctx(), guest.StartOptions{}))
	d.want(d.again(g), domain.Running, domain.ReasonBooted)
}
