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
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// UEFI variables that a transient guest created are removed when it ends. Variables that existed before it, or
// that are kept on request, stay.
// Promise: F24
func TestNVRAM_TransientGuest(t *testing.T) {
	const code = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	if _, err := os.Stat(code); err != nil {
		t.Skipf("needs UEFI firmware: %v", err)
	}
	d := newDaemon(t)
	doc := func(name string, devices ...string) string {
		return strings.Replace(small(name, devices...), "</os>",
			"<loader readonly='yes' type='pflash'>"+code+"</loader><nvram template='/usr/share/OVMF/OVMF_VARS_4M.fd'/></os>", 1)
	}
	path := func(g *guest.Guest) string { return filepath.Join(d.dir, "data/guest/nvram", g.UUID+"_VARS.fd") }
	create := func(name string) *guest.Guest {
		g, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), doc(name), launch.StartOptions{Paused: true})
		ok(t, err)
		return g
	}
	begun := func(name string) *guest.Guest {
		g := d.define(doc(name))
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
		return g
	}
	for name, c := range map[string]struct {
		do    func(name string) *guest.Guest
		stays bool
	}{
		"transient": {func(name string) *guest.Guest {
			g := create(name)
			ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
			return g
		}, false},
		"buried": {func(name string) *guest.Guest {
			g := create(name)
			pid := d.pid(name)
			d.reopen(func() {
				ok(t, syscall.Kill(pid, syscall.SIGKILL))
				_, err := syscall.Wait4(pid, nil, 0, nil)
				ok(t, err)
			})
			return g
		}, false},
		"kept": {func(name string) *guest.Guest {
			g := begun(name)
			ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{KeepNVRAM: true}))
			ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
			return g
		}, true},
		"saved": {func(name string) *guest.Guest {
			g := create(name)
			image := filepath.Join(t.TempDir(), "image")
			ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), image, savestate.SaveOptions{}))
			again, err := guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), image, savestate.SaveOptions{Then: domain.Paused})
			ok(t, err)
			ok(t, guest.Destroy(d.ctx(), again, scope.Daemon("a test"), false))
			return g
		}, true},
		"defined": {func(name string) *guest.Guest {
			g := begun(name)
			ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
			return g
		}, true},
	} {
		if g := c.do(name); gone(path(g)) == c.stays {
			t.Errorf("%s: its UEFI variables are gone: %v", name, !c.stays)
		}
	}
	before, err := os.ReadDir(filepath.Join(d.dir, "data/guest/nvram"))
	ok(t, err)
	_, err = guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), strings.Replace(doc("refused"), "</domain>",
		`<commandline xmlns='http://libvirt.org/schemas/domain/qemu/1.0'><arg value='-no-such-option'/></commandline></domain>`, 1), launch.StartOptions{})
	refused(t, err, fault.Failed, "no-such-option")
	if after, err := os.ReadDir(filepath.Join(d.dir, "data/guest/nvram")); err != nil || len(after) != len(before) {
		t.Errorf("a guest that never ran leaves UEFI variables: %v, %v", after, err)
	}
}

// The UEFI variables that two guests have, as one was made of the other's definition by hand, stay when one is
// undefined with its own, and go with the last.
// Promise: F36
func TestNVRAM_OfOtherGuestKept(t *testing.T) {
	d := newDaemon(t)
	path := filepath.Join(t.TempDir(), "vars")
	ok(t, os.WriteFile(path, []byte("keys"), 0o600))
	one, two := d.define(withVariables("one", path)), d.define(withVariables("two", path))
	ok(t, guest.Undefine(d.ctx(), two, scope.Daemon("a test"), guest.UndefineOptions{NVRAM: true}))
	if gone(path) {
		t.Error("they went with the other guest")
	}
	ok(t, guest.Undefine(d.ctx(), one, scope.Daemon("a test"), guest.UndefineOptions{NVRAM: true}))
	if !gone(path) {
		t.Error("the variables have no guest, and stay")
	}
}

// withVariables is a guest that has a file of UEFI variables.
func withVariables(name, path string) string {
	return strings.Replace(small(name), "</os>", "<loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.fd</loader><nvram>"+path+"</nvram></os>", 1)
}
