package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Promise: G8
func TestAGuestWithMoreProcessorsThanAtItsStartIsRestored(t *testing.T) {
	d := newDaemon(t)
	disk := func(name string) string {
		path := filepath.Join(d.dir, name)
		ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		return "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='" + path + "'/><target dev='" + name + "' bus='virtio'/></disk>"
	}
	doc := strings.Replace(small("grown", disk("vda"), "<controller type='scsi' model='virtio-scsi'/>"), "<vcpu>1</vcpu>", "<vcpu current='1'>3</vcpu>", 1)
	g := d.define(doc)
	ok(t, g.Start(d.ctx(), scope.Daemon("a test"), guest.StartOptions{}))
	ok(t, g.SetVCPUs(d.ctx(), scope.Daemon("a test"), 2, guest.VCPUOptions{Affect: guest.Affect{Live: true}}))
	ok(t, g.Attach(d.ctx(), scope.Daemon("a test"), disk("vdb"), guest.Affect{Live: true}))
	own, err := domainxml.Format(g.View().Active, domainxml.Style{Secure: true}) // it counts no queues
	ok(t, err)

	ok(t, g.ManagedSave(d.ctx(), scope.Daemon("a test"), guest.SaveOptions{}))
	d.settle(g, domain.ShutOff)
	ok(t, g.Start(d.ctx(), scope.Daemon("a test"), guest.StartOptions{}))
	d.want(g, domain.Running, domain.ReasonRestored)

	ok(t, g.SetVCPUs(d.ctx(), scope.Daemon("a test"), 3, guest.VCPUOptions{Affect: guest.Affect{Live: true}}))
	own = strings.Replace(own, " current='2'", "", 1)
	path := filepath.Join(d.dir, "image")
	ok(t, g.Save(d.ctx(), scope.Daemon("a test"), path, guest.SaveOptions{XML: own}))
	d.settle(g, domain.ShutOff)
	_, err = d.Restore(d.ctx(), scope.Daemon("a test"), path, guest.SaveOptions{XML: own})
	ok(t, err)
	d.want(g, domain.Running, domain.ReasonRestored)
}
