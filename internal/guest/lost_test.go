package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// The store's file is destroyed, to the last byte: what runs goes on and is
// persistent, and no saved guest is lost.
// Promise: S9
func TestGuestsOfAStoreThatIsLost(t *testing.T) {
	d := newDaemon(t)
	runs, saved, idle := d.define(small("runs")), d.define(small("saved")), d.define(small("idle"))
	ok(t, runs.Start(d.ctx(), guest.StartOptions{}))
	ok(t, saved.Start(d.ctx(), guest.StartOptions{}))
	ok(t, saved.ManagedSave(d.ctx(), guest.SaveOptions{}))
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
	if _, err := d.ByUUID(idle.UUID()); err == nil {
		t.Error("a guest came back from nowhere")
	}
	aside := d.store.DamagedFiles()
	if len(aside) != 1 {
		t.Fatalf("the damaged file is not kept: %v", aside)
	}
	if info, err := os.Stat(aside[0]); err != nil || info.Size() != damaged {
		t.Errorf("the file that was put aside is not the damaged one: %v", err)
	}
	// What was found is stored: the next daemon has it without looking.
	d.reopen(func() { ok(t, os.Remove(aside[0])) })
	d.wantKept(runs, saved)
}

// wantKept ends a guest that runs and goes on with one that was saved: both are the daemon's.
func (d *daemon) wantKept(runs, saved *guest.Guest) {
	d.t.Helper()
	runs, saved = d.again(runs), d.again(saved)
	ok(d.t, runs.Destroy(d.ctx(), false))
	d.want(d.again(runs), domain.ShutOff, domain.ReasonDestroyed)
	ok(d.t, saved.Start(d.ctx(), guest.StartOptions{}))
	d.want(saved, domain.Running, domain.ReasonRestored)
	ok(d.t, saved.Destroy(d.ctx(), false))
}

// The store's file is gone, as where its directory was not mounted, or somebody moved it: no
// saved image goes with it.
// Promise: S9
func TestGuestsOfAStoreThatIsGone(t *testing.T) {
	d := newDaemon(t)
	runs, saved := d.define(small("runs")), d.define(small("saved"))
	ok(t, runs.Start(d.ctx(), guest.StartOptions{}))
	ok(t, saved.Start(d.ctx(), guest.StartOptions{}))
	ok(t, saved.ManagedSave(d.ctx(), guest.SaveOptions{}))
	d.reopen(func() {
		ok(t, os.Remove(store.Path(filepath.Join(d.dir, "data"))))
		early, err := store.Open(filepath.Join(d.dir, "data")) // of a daemon that is killed before it looks for guests
		ok(t, err)
		ok(t, early.Close())
	})
	d.reopen(func() {}) // what was found is stored: the next daemon has it without looking
	d.wantKept(runs, saved)
}

// Somebody has tidied up in the data directory.
// Promise: F26
func TestFoldersThatAreGoneAreMadeAgain(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("swept"))
	tidy := func() {
		for _, path := range []string{d.LogPath("swept"), g.ManagedSavePath()} {
			ok(t, os.RemoveAll(filepath.Dir(path)))
		}
	}
	tidy()
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	if _, err := os.Stat(d.LogPath("swept")); err != nil {
		t.Error(err)
	}
	tidy()
	ok(t, g.ManagedSave(d.ctx(), guest.SaveOptions{}))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	d.want(g, domain.Running, domain.ReasonRestored)
	ok(t, g.Destroy(d.ctx(), false))
}

// An earlier store takes the place of the present one, as a backup does: guests that run, and one
// that ended meanwhile, were defined later, and nobody has undefined them.
// Promise: S9
func TestGuestsOfAStoreOfYesterday(t *testing.T) {
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
		ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	}
	ok(t, other.Undefine(d.ctx(), guest.UndefineOptions{}))
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
	ok(t, d.again(runs).Destroy(d.ctx(), false))
	d.reopen(func() {})
	for _, g := range []*guest.Guest{runs, ended} {
		if !d.again(g).View().Persistent {
			t.Errorf("%s was defined, and is not", g.Name())
		}
	}
}

// In the store that came back another guest has the name of one that runs: who comes to know that
// one again finds the state of its TPM, and nobody else does.
// Promise: S9
func TestAGuestWhoseNameIsTakenKeepsItsSecrets(t *testing.T) {
	d := newDaemon(t)
	path := store.Path(filepath.Join(d.dir, "data"))
	taken := d.define(small("taken"))
	var backup []byte
	d.reopen(func() {
		var err error
		backup, err = os.ReadFile(path)
		ok(t, err)
	})
	ok(t, d.again(taken).Undefine(d.ctx(), guest.UndefineOptions{}))
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
		ok(t, g.Start(d.ctx(), guest.StartOptions{}))
		state := filepath.Join(d.dir, "data/guest/tpm", g.UUID())
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
		if g, err := d.ByUUID(g.UUID()); err == nil {
			ok(t, g.Destroy(d.ctx(), false))
		}
		if gone(state) {
			t.Errorf("it ended %s: the state of its TPM is gone", name)
		}
		_, err := d.Define(d.ctx(), strings.Replace(small("thief"), "</name>", "</name><uuid>"+g.UUID()+"</uuid>", 1), false)
		refused(t, err, fault.Exists, "another name")
		d.reopen(func() { ok(t, os.WriteFile(path, now, 0o600)) })
		ok(t, d.again(g).Undefine(d.ctx(), guest.UndefineOptions{}))
	}
}
