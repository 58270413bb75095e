package guest_test

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A guest does not start with an image that is being uploaded. After the daemon's check, the header may come to
// name a data file, which QEMU opens on its own.
// Promise: X2
func TestUpload_WhileStarting(t *testing.T) {
	d := newDaemonOf(t, true)
	p, err := d.pools.Define(d.ctx(), scope.Daemon("a test"), "<pool type='dir'><name>p</name><target><path>"+t.TempDir()+"</path></target></pool>", false)
	ok(t, err)
	ok(t, p.Start(d.ctx(), scope.Daemon("a test"), volume.NoBuild))
	v, err := p.CreateVolume(d.ctx(), scope.Daemon("a test"), "<volume><name>disk</name><capacity>1048576</capacity><target><format type='qcow2'/></target></volume>", volume.CreateOptions{})
	ok(t, err)
	g := d.define(small("begins", diskOf("qcow2", v.Path, "")))
	u, err := p.Upload(d.ctx(), scope.Daemon("a test"), "disk", 0, 0)
	ok(t, err)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}), fault.Busy, "open to write")
	u.Abort()
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	_, err = p.Upload(d.ctx(), scope.Daemon("a test"), "disk", 0, 0)
	refused(t, err, fault.Busy, "a guest or qemu-img has")
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
}
