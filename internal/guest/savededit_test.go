package guest_test

import (
	"os"
	"path/filepath"
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
	"github.com/lodge-kvm/lodge/internal/word/scope/scopetest"
)

// A definition that comes with a save is held to what one has to keep to that is defined: the name
// of a device leads to no other's files, and a start takes no more than the machine had.
// Promise: A3
func TestSave_DefinitionWithinQuota(t *testing.T) {
	d := newDaemonOf(t, true)
	cell := "<cpu><numa><cell id='0' cpus='0' memory='65536'/></numa></cpu>"
	g := d.define(strings.Replace(small("saved", "<controller type='virtio-serial'/>",
		"<channel type='unix'><target type='virtio' name='org.test.0'/></channel>"), "<devices>", cell+"<devices>", 1))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	own, err := domainxml.Format(g.View().Active, domainxml.Style{Secure: true})
	ok(t, err)
	trap := filepath.Join(d.dir, "trap")
	channel := own[strings.Index(own, "<channel"):strings.Index(own, "</channel>")]
	wrong := map[string]string{
		"alias": strings.Replace(own, channel, "<channel type='unix'><target type='virtio' name='org.test.0'/>"+
			"<alias name='ua-x/"+strings.Repeat("../", 16)+trap[1:]+"'/>"+channel[strings.Index(channel, "<address"):], 1),
		"iothreads": strings.Replace(own, "<os>", "<iothreads>18446744073709551615</iothreads><os>", 1),
		"cells":     strings.Replace(own, "memory='65536' unit='KiB'", "memory='1' unit='TiB'", 1),
		"alias vnc": strings.Replace(own, "</devices>", strings.Repeat("<graphics type='vnc' autoport='yes'/>", 2)+"</devices>", 1),
	}
	for word, doc := range wrong {
		if doc == own {
			t.Fatalf("%s: nothing was changed in\n%s", word, own)
		}
		refused(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{XML: doc}), fault.Invalid, word)
		d.want(g, domain.Running, domain.ReasonBooted)
	}
	client := scopetest.Client(scopetest.Limits{Guest: func(_ string, def *domain.Definition, _ uint64) error {
		if def.IOThreads > 0 {
			return fault.New(fault.NoCapacity, fault.Call, "no more threads")
		}
		return nil
	}})
	more := savestate.SaveOptions{XML: strings.Replace(own, "<os>", "<iothreads>9</iothreads><os>", 1)}
	refused(t, savestate.ManagedSave(d.ctx(), g, client, more), fault.NoCapacity, "no more threads")
	ok(t, savestate.ManagedSave(d.ctx(), g, client, savestate.SaveOptions{XML: own}))
	d.settle(g, domain.ShutOff)
	refused(t, savestate.RedefineManagedSave(d.ctx(), g, client, more), fault.NoCapacity, "no more threads")
	for word, doc := range wrong {
		refused(t, savestate.RedefineManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{XML: doc}), fault.Failed, word)
	}
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.want(g, domain.Running, domain.ReasonRestored)
	if _, err := os.Stat(trap + ".sock"); err == nil {
		t.Error("the name of a device led to a socket elsewhere")
	}
}

// A start from a save image is authorized like a definition with the image's content. Weights in the guest's own
// managed image are not new, so they need no authorization. Those in a client's file do.
func TestStart_ManagedSaveWithinQuota(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.define(small("kept", "<video><model type='vga'/></video>"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, hotplug.Tune(d.ctx(), g, scope.Daemon("a test"), machine.Affect{Live: true}, func(def *domain.Definition) error { def.Tune.Shares = 2048; return nil }))
	own, err := domainxml.Format(g.View().Active, domainxml.Style{Secure: true})
	ok(t, err)
	bare := strings.Replace(own, " vram='16384'", "", 1)
	if bare == own {
		t.Fatalf("there is no memory of graphics in\n%s", own)
	}
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{XML: bare}))
	d.settle(g, domain.ShutOff)
	asked := new(domain.Definition)
	client := scopetest.Client(scopetest.Limits{Guest: func(_ string, def *domain.Definition, _ uint64) error {
		asked = def
		if def.Tune.Shares > 1024 {
			return fault.New(fault.Denied, fault.Call, "too heavy")
		}
		return nil
	}})
	ok(t, launch.Start(d.ctx(), g, client, launch.StartOptions{}))
	if v := asked.Devices.Videos; len(v) != 1 || v[0].VRAM != 16<<10 {
		t.Errorf("asked for was %+v", v)
	}
	if shares := g.View().Active.Tune.Shares; shares != 2048 {
		t.Errorf("it weighs %d", shares)
	}
	path := filepath.Join(d.dir, "image")
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), path, savestate.SaveOptions{}))
	d.settle(g, domain.ShutOff)
	_, err = guest.Restore(d.ctx(), d.Registry, client, path, savestate.SaveOptions{})
	refused(t, err, fault.Denied, "too heavy")
}
