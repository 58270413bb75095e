package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard/mounttest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// promptly fails when something takes longer than no waiting explains.
func promptly(t *testing.T, what string, do func()) {
	t.Helper()
	begun := time.Now()
	do()
	if d := time.Since(begun); d > 5*time.Second {
		t.Errorf("%s took %v", what, d)
	}
}

// Promise: W1
func TestFileSystem_HungDelaysNoGuest(t *testing.T) {
	d := newDaemon(t)
	dead := filepath.Join(d.dir, "dead")
	ok(t, os.Mkdir(dead, 0o700))
	mounttest.Hang(t, dead)
	visits := mounttest.Visits(t, dead)
	path := filepath.Join(dead, "file")

	disk := d.define(small("disk", `<disk type='file'><driver type='raw'/><source file='`+path+`'/><target dev='vda' bus='virtio'/></disk>`))
	started := make(chan error, 1)
	go func() { started <- launch.Start(d.ctx(), disk, scope.Daemon("a test"), launch.StartOptions{}) }()
	eventually(t, "the start has come to its disk", func() bool { return visits() > 0 })
	promptly(t, "ending a start that waits for its disk", func() { ok(t, guest.Destroy(d.ctx(), disk, scope.Daemon("a test"), false)) })
	refused(t, <-started, fault.Aborted, dead)

	saver := d.define(small("saver"))
	ok(t, launch.Start(d.ctx(), saver, scope.Daemon("a test"), launch.StartOptions{}))
	saved := make(chan error, 1)
	go func() { saved <- savestate.Save(d.ctx(), saver, scope.Daemon("a test"), path, savestate.SaveOptions{}) }()
	eventually(t, "the save has begun", func() bool { return saver.Job().Kind == domain.JobSave })
	promptly(t, "a destroy in a save", func() { ok(t, guest.Destroy(d.ctx(), saver, scope.Daemon("a test"), false)) })
	if err := <-saved; err == nil || !strings.Contains(err.Error(), "destroyed") {
		t.Errorf("the save ends with %v", err)
	}
	promptly(t, "the next start", func() { ok(t, launch.Start(d.ctx(), saver, scope.Daemon("a test"), launch.StartOptions{})) })
}
