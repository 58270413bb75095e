package guest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Each part of a guest is within its limit, but the whole definition would be too large for the next daemon to
// read. The guest would then be missing from every list, so the change is refused.
// Promise: G3
func TestWhatNoDaemonCouldReadIsRefused(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("whole"))
	long := d.define(strings.Replace(small("long"), "</name>", "</name><description>x</description>", 1))
	deep := strings.Repeat("<a>", xmltree.MaxDepth-1) + strings.Repeat("</a>", xmltree.MaxDepth-1)
	wide := "<a>" + strings.Repeat("<b/>", xmltree.MaxNodes/2-4) + "</a>"
	unreadable := func(a machine.Affect) {
		t.Helper()
		for _, text := range []string{deep, wide} {
			refused(t, guest.SetMetadata(d.ctx(), g, scope.Daemon("a test"), guest.Element, &text, "x", "http://x", a), fault.Invalid, "could not be read again")
		}
	}
	unreadable(machine.Affect{Config: true})
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	unreadable(machine.Affect{Live: true})
	unreadable(machine.Affect{Live: true, Config: true})

	running, err := domainxml.Format(g.View().Active, domainxml.Style{Active: true, Secure: true, ID: g.View().ID})
	ok(t, err)
	words := strings.Repeat("x", xmltree.MaxSize-len(running)-100)
	ok(t, guest.SetMetadata(d.ctx(), g, scope.Daemon("a test"), guest.Description, &words, "", "", machine.Affect{Live: true}))
	refused(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), `<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>`, machine.Affect{Live: true}), fault.Invalid, "could not be read again")

	stored, err := domainxml.Format(long.View().Inactive, domainxml.Style{Secure: true})
	ok(t, err)
	words = strings.Repeat("x", xmltree.MaxSize-len(stored)+1)
	ok(t, guest.SetMetadata(d.ctx(), long, scope.Daemon("a test"), guest.Description, &words, "", "", machine.Affect{Config: true}))
	refused(t, launch.Start(d.ctx(), long, scope.Daemon("a test"), launch.StartOptions{}), fault.Invalid, "could not be read again")
	d.reopen(func() {})
	d.settle(d.again(g), domain.Running)
	d.settle(d.again(long), domain.ShutOff)
}

// A device is attached with a boot order that another device has. Such a guest could be saved, but not restored.
// Promise: F31
func TestADeviceBringsNoSecondBootOrder(t *testing.T) {
	d := newDaemon(t)
	const nic = "<interface type='user'><mac address='52:54:00:00:00:0%s'/><model type='virtio'/><boot order='%s'/></interface>"
	ordered := fmt.Sprintf(nic, "1", "1")
	elsewhere := d.define(small("elsewhere")) // which boots from its first disk, as nothing else is said
	g := d.define(small("ordered", ordered, "<controller type='pci' index='8' model='pcie-root-port'/>"))
	ok(t, launch.Start(d.ctx(), elsewhere, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	for _, a := range []machine.Affect{{Live: true}, {Config: true}, {Live: true, Config: true}} {
		refused(t, hotplug.Attach(d.ctx(), elsewhere, scope.Daemon("a test"), ordered, a), fault.Unsupported, "boot order of devices")
		refused(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), fmt.Sprintf(nic, "2", "1"), a), fault.Unsupported, "boot order 1 is given to two")
	}
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), fmt.Sprintf(nic, "3", "2"), machine.Affect{Live: true, Config: true}))
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	d.settle(g, domain.ShutOff)
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.want(g, domain.Running, domain.ReasonRestored)
}
