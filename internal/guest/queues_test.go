package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Promise: G8
func TestRestore_HotpluggedVCPUs(t *testing.T) {
	d := newDaemon(t)
	disk := func(name string) string {
		path := filepath.Join(d.dir, name)
		ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		return "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='" + path + "'/><target dev='" + name + "' bus='virtio'/></disk>"
	}
	doc := strings.Replace(small("grown", disk("vda"), "<controller type='scsi' model='virtio-scsi'/>"), "<vcpu>1</vcpu>", "<vcpu current='1'>3</vcpu>", 1)
	g := d.define(doc)
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, hotplug.SetVCPUs(d.ctx(), g, scope.Daemon("a test"), 2, hotplug.VCPUOptions{Affect: machine.Affect{Live: true}}))
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), disk("vdb"), machine.Affect{Live: true}))
	own, err := domainxml.Format(g.View().Active, domainxml.Style{Secure: true}) // it counts no queues
	ok(t, err)

	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	d.settle(g, domain.ShutOff)
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.want(g, domain.Running, domain.ReasonRestored)

	ok(t, hotplug.SetVCPUs(d.ctx(), g, scope.Daemon("a test"), 3, hotplug.VCPUOptions{Affect: machine.Affect{Live: true}}))
	own = strings.Replace(own, " current='2'", "", 1)
	path := filepath.Join(d.dir, "image")
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), path, savestate.SaveOptions{XML: own}))
	d.settle(g, domain.ShutOff)
	_, err = guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), path, savestate.SaveOptions{XML: own})
	ok(t, err)
	d.want(g, domain.Running, domain.ReasonRestored)
}
