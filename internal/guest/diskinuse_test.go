package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	images "github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A guest is not started, nor plugged a disk, on what the daemon itself writes to just now, and is when that
// is done.
// Promise: F20
func TestDisk_WrittenByOther(t *testing.T) {
	d := newDaemon(t)
	path := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(path)
	ok(t, err)
	ok(t, f.Truncate(1<<20))
	disk := fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='%s'/><target dev='vdb' bus='virtio'/></disk>`, path)
	g, other := d.define(small("waits", disk)), d.define(small("other"))
	ok(t, launch.Start(d.ctx(), other, scope.Daemon("a test"), launch.StartOptions{}))
	release, err := images.LockToWrite(f)
	ok(t, err)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Busy, "open to write")
	refused(t, hotplug.Attach(d.ctx(), other, scope.Daemon("a test"), disk, machine.Affect{Live: true}), fault.Busy, "open to write")
	release()
	ok(t, f.Close())
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	f, err = os.OpenFile(path, os.O_RDWR, 0)
	ok(t, err)
	defer f.Close()
	if _, err := images.LockToWrite(f); !fault.Is(err, fault.Busy) {
		t.Errorf("what a guest has is written: %v", err)
	}
}

// The floppy in a drive is inserted again, as by virsh change-media with the same file.
// Promise: F20
func TestFloppy_Reinserted(t *testing.T) {
	d := newDaemonOf(t, true)
	path := filepath.Join(d.dir, "floppy")
	ok(t, os.WriteFile(path, make([]byte, 1440<<10), 0o600))
	drive := "<disk type='file' device='floppy'><driver type='raw'/><source file='" + path + "'/><target dev='fda' bus='fdc'/></disk>"
	g := d.define(small("floppy", drive))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	ok(t, hotplug.Update(d.ctx(), g, scope.Daemon("a test"), drive, machine.Affect{Live: true}, false))
}
