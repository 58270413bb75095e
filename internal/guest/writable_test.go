package guest_test

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// An image that QEMU may write for a while has the label of its writable files for that time. When the guest has
// ended it has the label from before any guest. While another guest reads the image, QEMU must not write it.
func TestLendToWrite_SELinux(t *testing.T) {
	d := newDaemonWith(t, kerneltest.SELinux)
	top, base := d.chain("top", "base"), filepath.Join(d.dir, "base")
	d.run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", base, filepath.Join(d.dir, "other"))
	if err := unix.Setxattr(base, "security.selinux", append([]byte(home), 0), 0); err != nil {
		t.Skip("files here cannot be labelled: ", err)
	}
	g := d.define(small("a", qcow2Disk(top, "vda")))
	other := d.define(small("b", qcow2Disk(filepath.Join(d.dir, "other"), "vda")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, launch.Start(d.ctx(), other, scope.Daemon("a test"), launch.StartOptions{}))
	wantContext(t, "read by two", base, content)
	refused(t, guest.LendToWrite(d.ctx(), g, "vda", 1), fault.Busy, "another running guest uses it")
	wantContext(t, "refused", base, content)
	ok(t, guest.Destroy(d.ctx(), other, scope.Daemon("a test"), false))
	settled(t, d, other)

	ok(t, guest.LendToWrite(d.ctx(), g, "vda", 1))
	wantContext(t, "lent", base, private)
	d.reopen(func() {})
	g = d.again(g)
	ok(t, guest.LendToWrite(d.ctx(), g, "vda", 1))
	wantContext(t, "lent once more, by the next daemon", base, private)
	for range 2 {
		_, err := guest.TakeBackToRead(d.ctx(), g, 2, base, "qcow2")
		ok(t, err)
		wantContext(t, "taken back", base, content)
	}
	ok(t, guest.LendToWrite(d.ctx(), g, "vda", 1))
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	settled(t, d, g)
	wantContext(t, "ended while it was lent", base, home)
}

// The guest's profile lets QEMU write an image for as long as it is lent.
func TestLendToWrite_AppArmor(t *testing.T) {
	profile := newParser(t)
	d := newDaemonWith(t, kerneltest.AppArmor)
	top, base := d.chain("top", "base"), filepath.Join(d.dir, "base")
	g := d.define(small("a", qcow2Disk(top, "vda")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	start := profile()
	reads, writes := `"`+base+`" rk,`, `"`+base+`" rwk,`
	if !strings.Contains(start, reads) || strings.Contains(start, writes) {
		t.Fatalf("at first it says\n%s", start)
	}
	for range 2 {
		ok(t, guest.LendToWrite(d.ctx(), g, "vda", 1))
		if now := profile(); strings.Count(now, writes) != 1 {
			t.Errorf("while it is lent it says\n%s", now)
		}
	}
	for range 2 {
		_, err := guest.TakeBackToRead(d.ctx(), g, 2, base, "qcow2")
		ok(t, err)
		if now := profile(); now != start {
			t.Errorf("taken back, it says\n%s", now)
		}
	}
}
