package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Secrets of an undefined guest are kept only for a guest with the same name. Otherwise a user could define a
// guest with the UUID of another user's guest, and get its secrets.
// Promise: A3
func TestLeftover_SameNameOnly(t *testing.T) {
	d := newDaemon(t)
	const uuid = "4b1d6a2e-9f0c-4c57-8c1a-1e5ca9e00077"
	doc := func(name string) string {
		return strings.Replace(small(name), "<name>", "<uuid>"+uuid+"</uuid><name>", 1)
	}
	variables := filepath.Join(d.dir, "data/guest/nvram", uuid+"_VARS.fd")
	keep := guest.UndefineOptions{KeepNVRAM: true, KeepTPM: true}
	g := d.define(doc("second"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	image := filepath.Join(d.dir, "image")
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), image, savestate.SaveOptions{}))
	ok(t, guest.Rename(d.ctx(), g, scope.Daemon("a test"), "first"))
	ok(t, os.MkdirAll(filepath.Dir(variables), 0o700))
	ok(t, os.WriteFile(variables, []byte("secret"), 0o600))
	ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), keep))
	d.reopen(func() {})
	for range 2 {
		_, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), doc("second"), false)
		refused(t, err, fault.Exists, "another name")
		_, err = guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), doc("second"), launch.StartOptions{})
		refused(t, err, fault.Exists, "another name")
		_, err = guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), image, savestate.SaveOptions{})
		refused(t, err, fault.Exists, "another name")
		ok(t, guest.Undefine(d.ctx(), d.define(doc("first")), scope.Daemon("a test"), keep))
	}
	ok(t, os.Remove(variables))
	d.define(doc("second"))
}

// Nor does one of another name have them that is defined just as the guest goes.
// Promise: A3
func TestLeftover_JustLeft(t *testing.T) {
	d := newDaemon(t)
	const uuid = "4b1d6a2e-9f0c-4c57-8c1a-1e5ca9e00078"
	doc := func(name string) string {
		return strings.Replace(small(name), "<name>", "<uuid>"+uuid+"</uuid><name>", 1)
	}
	variables := filepath.Join(d.dir, "data/guest/nvram", uuid+"_VARS.fd")
	for range 20 {
		g := d.define(doc("first"))
		ok(t, os.WriteFile(variables, []byte("secret"), 0o600))
		gone := make(chan error, 1)
		go func() {
			gone <- guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{KeepNVRAM: true, KeepTPM: true})
		}()
		for told := false; !told; {
			_, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), doc("second"), false)
			refused(t, err, fault.Exists, "")
			told = strings.Contains(err.Error(), "another name")
		}
		ok(t, <-gone)
	}
}
