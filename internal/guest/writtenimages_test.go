package guest_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// overwritten writes the first cluster of one image, with its header, over that of another, as any process with
// write access can.
func overwritten(t *testing.T, path, by string) {
	t.Helper()
	const cluster = 64 << 10
	from, err := os.Open(by)
	ok(t, err)
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY, 0)
	ok(t, err)
	_, err = io.CopyN(to, from, cluster)
	ok(t, err)
	ok(t, to.Close())
}

// A compromised QEMU writes into its image that a file of another user is the backing file. Neither this
// guest nor another one gets that file, from this daemon or the next. A change that is made while no QEMU has
// the image counts.
// Promise: X2
func TestCheckWrittenDisks_ChangedHeader(t *testing.T) {
	d := newDaemonOf(t, true)
	dir := t.TempDir()
	secret, image, forged := filepath.Join(dir, "secret"), filepath.Join(dir, "image"), filepath.Join(dir, "forged")
	ok(t, os.WriteFile(secret, make([]byte, 1<<20), 0o600))
	if err := unix.Setxattr(secret, "trusted.lodge", []byte("yes"), 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	tool(t, "create", "-q", "-f", "qcow2", image, "1M")
	tool(t, "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", forged)
	g := d.define(small("taken", diskOf("qcow2", image, "")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	overwritten(t, image, forged)
	d.crash(g)
	const says = "a guest or a restricted client has changed the header"
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, says)
	d.reopen(func() {})
	g = d.again(g)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, says)
	other := d.define(small("other"))
	ok(t, launch.Start(d.ctx(), other, scope.Daemon("a test"), launch.StartOptions{}))
	refused(t, hotplug.Attach(d.ctx(), other, scope.Daemon("a test"), diskOf("qcow2", image, ""), machine.Affect{Live: true}), fault.Denied, says)

	tool(t, "rebase", "-u", "-f", "qcow2", "-b", "", image)
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.reopen(func() {}) // which sees the end
	g = d.again(g)
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	d.want(g, domain.ShutOff, domain.ReasonDestroyed)
	tool(t, "rebase", "-u", "-f", "qcow2", "-b", secret, "-F", "raw", image)
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))

	pid := d.pid("taken")
	d.reopen(func() { ok(t, unix.Kill(pid, unix.SIGKILL)) }) // no daemon sees the end
	d.settle(d.again(g), domain.ShutOff)
	eventually(t, "the note to be gone", func() bool {
		_, err := unix.Getxattr(image, "trusted.lodge.backing", nil)
		return errors.Is(err, unix.ENODATA)
	})
}

// A guest writes an image header into its raw disk, and to its console. Another guest that uses that file as an
// image must not be led to another file.
// Promise: X2
func TestCheckWrittenDisks_GuestData(t *testing.T) {
	d := newDaemonOf(t, true)
	dir := t.TempDir()
	secret, disk, said, forged := filepath.Join(dir, "secret"), filepath.Join(dir, "disk"), filepath.Join(dir, "said"), filepath.Join(dir, "forged")
	ok(t, os.WriteFile(secret, make([]byte, 1<<20), 0o600))
	if err := unix.Setxattr(secret, "trusted.lodge", []byte("yes"), 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	tool(t, "create", "-q", "-f", "qcow2", disk, "1M")
	tool(t, "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", forged)
	g := d.define(small("writer", diskOf("raw", disk, "")+"<serial type='file'><source path='"+said+"'/></serial>"))
	for _, path := range []string{disk, said} {
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		overwritten(t, path, forged)
		ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
		d.want(g, domain.ShutOff, domain.ReasonDestroyed)
		reader := d.define(small("reader-"+filepath.Base(path), diskOf("qcow2", path, "")))
		refused(t, launch.Start(d.ctx(), reader, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, "a guest or a restricted client has changed the header")
	}
}

// The template of a guest's UEFI variables has an image header, and is copied for the guest. Another guest that
// uses the copy as an image must not be led to another file.
// Promise: X2
func TestCopyNVRAM_BackingFile(t *testing.T) {
	const code, blank = "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"
	text, err := os.ReadFile(blank)
	if err != nil {
		t.Skip("needs UEFI firmware:", err)
	}
	d := newDaemonOf(t, true)
	dir := t.TempDir()
	secret, template, vars, forged := filepath.Join(dir, "secret"), filepath.Join(dir, "template"), filepath.Join(dir, "vars"), filepath.Join(dir, "forged")
	ok(t, os.WriteFile(secret, make([]byte, 1<<20), 0o600))
	if err := unix.Setxattr(secret, "trusted.lodge", []byte("yes"), 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	tool(t, "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", forged)
	ok(t, os.WriteFile(template, text, 0o600))
	overwritten(t, template, forged)
	g := d.define(strings.Replace(small("copier"), "</os>",
		"<loader readonly='yes' type='pflash'>"+code+"</loader><nvram template='"+template+"'>"+vars+"</nvram></os>", 1))
	reader := d.define(small("reader", diskOf("qcow2", vars, "")))
	for _, again := range []bool{false, true} {
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true, ResetNVRAM: again}))
		ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
		d.want(g, domain.ShutOff, domain.ReasonDestroyed)
		refused(t, launch.Start(d.ctx(), reader, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, "a guest or a restricted client has changed the header")
	}
}

// The definition in a saved image is trusted. Another guest has the file as a disk and may have written
// another definition there.
func TestRestore_ImageWrittenByGuest(t *testing.T) {
	d := newDaemonOf(t, true)
	path := filepath.Join(t.TempDir(), "image")
	ok(t, os.WriteFile(path, nil, 0o600))
	if err := unix.Setxattr(path, "trusted.lodge", []byte("yes"), 0); err != nil {
		t.Skip("needs a file system with trusted attributes:", err)
	}
	g := d.define(small("saved"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), path, savestate.SaveOptions{}))
	d.settle(g, domain.ShutOff)
	writer := d.define(small("writer", diskOf("raw", path, "")))
	ok(t, launch.Start(d.ctx(), writer, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	ok(t, guest.Destroy(d.ctx(), writer, scope.Daemon("a test"), false))
	d.want(writer, domain.ShutOff, domain.ReasonDestroyed)
	_, err := guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), path, savestate.SaveOptions{})
	refused(t, err, fault.Denied, "has written to "+path)
	ok(t, unix.Removexattr(path, "trusted.lodge.backing"))
	_, err = guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), path, savestate.SaveOptions{})
	ok(t, err)
	d.want(g, domain.Paused, domain.ReasonUser)
}

// A compromised QEMU keeps a disk open that it should have closed, without the locks that would show that, or
// passes the descriptor on. The next guest is refused the disk until that process has ended.
// Promise: I1
func TestDisk_KeptOpen(t *testing.T) {
	d := newDaemonOf(t, true)
	path := filepath.Join(t.TempDir(), "disk")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	kept, err := os.OpenFile(path, os.O_RDWR, 0)
	ok(t, err)
	g := d.define(small("next", diskOf("raw", path, "")))
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}), fault.Busy, "has "+path+" open to write")
	sharer := d.define(small("sharer", diskOf("raw", path, "<shareable/>")))
	ok(t, launch.Start(d.ctx(), sharer, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	ok(t, guest.Destroy(d.ctx(), sharer, scope.Daemon("a test"), false))
	ok(t, kept.Close())
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
}

// While its guest is paused, QEMU closes no disk that it was told to close. The guest can have the disk again
// all the same, and another guest can have it when the first runs.
// Promise: I1
func TestDetach_PausedDisk(t *testing.T) {
	d := newDaemonOf(t, true)
	path := filepath.Join(t.TempDir(), "disk")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	stick := strings.NewReplacer("'vda'", "'sda'", "'virtio'", "'usb'").Replace(diskOf("raw", path, ""))
	const hub = "<controller type='usb' model='qemu-xhci'/>"
	first, other := d.define(small("first", hub)), d.define(small("other", diskOf("raw", path, "")))
	ok(t, launch.Start(d.ctx(), first, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	for range 2 {
		ok(t, hotplug.Attach(d.ctx(), first, scope.Daemon("a test"), stick, machine.Affect{Live: true}))
		ok(t, hotplug.Detach(d.ctx(), first, scope.Daemon("a test"), stick, machine.Affect{Live: true}))
	}
	ok(t, guest.Resume(d.ctx(), first, scope.Daemon("a test")))
	eventually(t, "the other guest has the disk", func() bool {
		return launch.Start(d.ctx(), other, scope.Daemon("a test"), launch.StartOptions{Paused: true}) == nil
	})
}

// The same for the medium of a drive that a paused guest no longer has. It is free once the guest has run.
// Promise: I1
func TestMedia_PausedGuest(t *testing.T) {
	d := newDaemonOf(t, true)
	path := filepath.Join(t.TempDir(), "medium")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	drive := func(source string) string {
		return "<disk type='file' device='cdrom'><driver name='qemu' type='raw'/>" + source + "<target dev='sda' bus='sata'/><readonly/></disk>"
	}
	g := d.define(small("reader", drive("<source file='"+path+"'/>")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	ok(t, hotplug.Update(d.ctx(), g, scope.Daemon("a test"), drive(""), machine.Affect{Live: true}, false))
	open := func() bool { return kernel.Root{}.HasOpen(g.View().PID, path) }
	if !open() {
		t.Skip("this QEMU closes it at once")
	}
	d.reopen(func() {})
	g = d.again(g)
	ok(t, guest.Resume(d.ctx(), g, scope.Daemon("a test")))
	eventually(t, "it is closed", func() bool { return !open() })
}
