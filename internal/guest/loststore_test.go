package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The store's file is destroyed, to the last byte: what runs goes on and is
// persistent, and no saved guest is lost.
// Promise: S9
func TestStore_Lost(t *testing.T) {
	d := newDaemon(t)
	runs, saved, idle := d.define(small("runs")), d.define(small("saved")), d.define(small("idle"))
	ok(t, launch.Start(d.ctx(), runs, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, launch.Start(d.ctx(), saved, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, savestate.ManagedSave(d.ctx(), saved, scope.Daemon("a test"), savestate.SaveOptions{}))
	path := store.Path(filepath.Join(d.dir, "data"))
	var damaged int64
	d.reopen(func() {
		info, err := os.Stat(path)
		ok(t, err)
		damaged = info.Size()
		ok(t, os.WriteFile(path, make([]byte, damaged), 0o600))
	})
	runs, saved = d.again(runs), d.again(saved)
	d.want(runs, domain.Running, domain.ReasonBooted)
	if !runs.View().Persistent || !saved.View().Persistent {
		t.Error("a guest that was persistent is transient")
	}
	if _, err := d.ByUUID(idle.UUID); err == nil {
		t.Error("a guest came back from nowhere")
	}
	aside := d.store.DamagedFiles()
	if len(aside) != 1 {
		t.Fatalf("the damaged file is not kept: %v", aside)
	}
	if info, err := os.Stat(aside[0]); err != nil || info.Size() != damaged {
		t.Errorf("the file that was put aside is not the damaged one: %v", err)
	}
	// The recovered definition is stored: the next daemon has it without a search.
	d.reopen(func() { ok(t, os.Remove(aside[0])) })
	d.wantKept(runs, saved)
}

// wantKept ends a running guest and starts a saved one. The daemon must know both.
func (d *daemon) wantKept(runs, saved *guest.Guest) {
	d.t.Helper()
	runs, saved = d.again(runs), d.again(saved)
	ok(d.t, guest.Destroy(d.ctx(), runs, scope.Daemon("a test"), false))
	d.want(d.again(runs), domain.ShutOff, domain.ReasonDestroyed)
	ok(d.t, launch.Start(d.ctx(), saved, scope.Daemon("a test"), launch.StartOptions{}))
	d.want(saved, domain.Running, domain.ReasonRestored)
	ok(d.t, guest.Destroy(d.ctx(), saved, scope.Daemon("a test"), false))
}

// The store's file is missing, because its directory was not mounted or the file was moved. No save image may be
// removed.
// Promise: S9
func TestStore_Gone(t *testing.T) {
	d := newDaemon(t)
	runs, saved := d.define(small("runs")), d.define(small("saved"))
	ok(t, launch.Start(d.ctx(), runs, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, launch.Start(d.ctx(), saved, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, savestate.ManagedSave(d.ctx(), saved, scope.Daemon("a test"), savestate.SaveOptions{}))
	d.reopen(func() {
		ok(t, os.Remove(store.Path(filepath.Join(d.dir, "data"))))
		early, err := store.Open(filepath.Join(d.dir, "data")) // of a daemon that is killed before it looks for guests
		ok(t, err)
		ok(t, early.Close())
	})
	d.reopen(func() {}) // the recovered definition is stored: the next daemon has it without a search
	d.wantKept(runs, saved)
}

// Folders in the data directory were removed.
// Promise: F26
func TestMakeDirs_Removed(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("swept"))
	tidy := func() {
		for _, path := range []string{guest.LogPath(d.Registry, "swept"), guest.ManagedSavePath(g)} {
			ok(t, os.RemoveAll(filepath.Dir(path)))
		}
	}
	tidy()
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	if _, err := os.Stat(guest.LogPath(d.Registry, "swept")); err != nil {
		t.Error(err)
	}
	tidy()
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.want(g, domain.Running, domain.ReasonRestored)
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
}

// A backup of the store replaces the present one. Running guests, and one that ended in between, were defined
// after it, and were not undefined by any client.
// Promise: S9
func TestStore_RestoredBackup(t *testing.T) {
	d := newDaemon(t)
	path := store.Path(filepath.Join(d.dir, "data"))
	before := d.define(small("before"))
	var backup []byte
	d.reopen(func() {
		var err error
		backup, err = os.ReadFile(path)
		ok(t, err)
	})
	runs, ended, other := d.define(small("runs")), d.define(small("ended")), d.define(small("other"))
	for _, g := range []*guest.Guest{runs, ended, other} {
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	}
	ok(t, guest.Undefine(d.ctx(), other, scope.Daemon("a test"), guest.UndefineOptions{}))
	pid := d.pid("ended")
	d.reopen(func() {
		ok(t, os.WriteFile(path, backup, 0o600))
		ok(t, syscall.Kill(pid, syscall.SIGKILL))
		_, err := syscall.Wait4(pid, nil, 0, nil) // this test's child
		ok(t, err)
	})
	d.again(before)
	if d.again(other).View().Persistent {
		t.Error("a guest that was undefined is defined again")
	}
	ok(t, guest.Destroy(d.ctx(), d.again(runs), scope.Daemon("a test"), false))
	d.reopen(func() {})
	for _, g := range []*guest.Guest{runs, ended} {
		if !d.again(g).View().Persistent {
			t.Errorf("%s was defined, and is not", g.Name())
		}
	}
}

// In the restored store another guest has the name of a running one. A client that names the running guest again
// finds its TPM's state; the other guest does not get it.
// Promise: S9
func TestStore_LostNameTaken(t *testing.T) {
	d := newDaemon(t)
	path := store.Path(filepath.Join(d.dir, "data"))
	taken := d.define(small("taken"))
	var backup []byte
	d.reopen(func() {
		var err error
		backup, err = os.ReadFile(path)
		ok(t, err)
	})
	ok(t, guest.Undefine(d.ctx(), d.again(taken), scope.Daemon("a test"), guest.UndefineOptions{}))
	for name, end := range map[string]func(){
		"under the next daemon": func() {},
		"before it came": func() {
			pid := d.pid("taken")
			ok(t, syscall.Kill(pid, syscall.SIGKILL))
			_, err := syscall.Wait4(pid, nil, 0, nil) // this test's child
			ok(t, err)
		},
	} {
		g := d.define(small("taken"))
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		state := filepath.Join(d.dir, "data/guest/tpm", g.UUID)
		ok(t, os.MkdirAll(state, 0o700))
		ok(t, os.WriteFile(filepath.Join(state, "tpm2-00.permall"), []byte("secret"), 0o600))
		var now []byte
		d.reopen(func() {
			var err error
			now, err = os.ReadFile(path)
			ok(t, err)
			ok(t, os.WriteFile(path, backup, 0o600))
			end()
		})
		if g, err := d.ByUUID(g.UUID); err == nil {
			ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
		}
		if gone(state) {
			t.Errorf("it ended %s: the state of its TPM is gone", name)
		}
		_, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), strings.Replace(small("thief"), "</name>", "</name><uuid>"+g.UUID+"</uuid>", 1), false)
		refused(t, err, fault.Exists, "another name")
		d.reopen(func() { ok(t, os.WriteFile(path, now, 0o600)) })
		ok(t, guest.Undefine(d.ctx(), d.again(g), scope.Daemon("a test"), guest.UndefineOptions{}))
	}
}
