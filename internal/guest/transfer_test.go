package guest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A restore trusts the definition in the image, and a compromised QEMU would write another one there. So QEMU
// never gets the file, and its output goes behind the definition.
// Promise: I1
func TestSave_QEMUHasNoFile(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.define(wordy("saved"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	path := filepath.Join(t.TempDir(), "image")
	read, saved := d.saving(g, path)
	open := "/proc/" + strconv.Itoa(d.pid("saved")) + "/fd/"
	all, err := os.ReadDir(open)
	ok(t, err)
	for _, e := range all {
		if to, _ := os.Readlink(open + e.Name()); to == path+".partial" {
			t.Errorf("QEMU has the image open, as %s", e.Name())
		}
	}
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	read()
	if err := <-saved; err == nil {
		t.Error("the save succeeds")
	}

	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), path, savestate.SaveOptions{}))
	image, err := os.ReadFile(path)
	ok(t, err)
	if at := bytes.Index(image, []byte("</domain>")); at < 0 || bytes.Index(image, []byte("QEVM")) < at {
		t.Errorf("the definition ends at %d, and QEMU's part is not behind it", at)
	}
	_, err = guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), path, savestate.SaveOptions{})
	ok(t, err)
}

// A client aborts a save to a file system that does not answer. The guest resumes without waiting for the file.
func TestSave_AbortedWithHungFile(t *testing.T) {
	d := newDaemon(t)
	g := d.define(wordy("hung"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	read, saved := d.saving(g, filepath.Join(t.TempDir(), "image"))
	ok(t, guest.AbortJob(d.ctx(), g, scope.Daemon("a test")))
	if err := <-saved; err == nil {
		t.Error("the save succeeds")
	}
	d.settle(g, domain.Running)
	ok(t, guest.Suspend(d.ctx(), g, scope.Daemon("a test")))
	read()
}
