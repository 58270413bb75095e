package guest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A save image may come from anywhere. It belongs to the guest with its UUID, in any spelling. An image without a
// UUID belongs to no guest: folders are named by the UUID, and without one the folder of all guests was removed.
// Promise: X9
func TestManagedSave_PathByUUID(t *testing.T) {
	d := newDaemon(t)
	g, other := d.define(small("saved")), d.define(small("other"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, launch.Start(d.ctx(), other, scope.Daemon("a test"), launch.StartOptions{}))
	path := filepath.Join(d.dir, "image")
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), path, savestate.SaveOptions{}))
	d.settle(g, domain.ShutOff)
	ok(t, guest.Rename(d.ctx(), g, scope.Daemon("a test"), "renamed"))
	spelt := "<uuid>" + g.UUID + "</uuid>"
	respell := func(to string) {
		image, err := os.ReadFile(path)
		ok(t, err)
		from := []byte(spelt)
		if spelt = to; !bytes.Contains(image, from) || len(from) != len(to) {
			t.Fatalf("cannot put %q in the place of %q", to, from)
		}
		ok(t, os.WriteFile(path, bytes.Replace(image, from, []byte(to), 1), 0o600))
	}

	respell(strings.Repeat(" ", len(spelt)))
	_, err := guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), path, savestate.SaveOptions{})
	if _, e := os.Stat(guest.RunDir(other)); e != nil {
		t.Errorf("another guest has lost its run directory: %v", e)
	}
	refused(t, err, fault.Failed, "names no UUID")

	respell("<uuid>" + strings.ToUpper(g.UUID) + "</uuid>")
	_, err = guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), path, savestate.SaveOptions{})
	refused(t, err, fault.Exists, "already defined with uuid")
	ok(t, guest.Rename(d.ctx(), g, scope.Daemon("a test"), "saved"))
	again, err := guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), path, savestate.SaveOptions{})
	ok(t, err)
	if again != g || len(d.All()) != 2 {
		t.Errorf("%s is restored as %s: there are %d guests", g.UUID, again.UUID, len(d.All()))
	}
}
