package guest_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const mib = 1 << 20

// growing is a guest of 64 MiB with two sockets for memory, up to 512 MiB.
func growing(name string, devices ...string) string {
	doc := strings.Replace(small(name, devices...), "<memory ", "<maxMemory slots='2' unit='MiB'>512</maxMemory><memory ", 1)
	return strings.Replace(doc, "<features>", "<cpu><numa><cell id='0' cpus='0' memory='64' unit='MiB'/></numa></cpu><features>", 1)
}

const module = `<memory model='dimm'><target><size unit='MiB'>128</size><node>0</node></target></memory>`

// held is the memory that the books have of a guest, in MiB.
func (d *daemon) held(g *guest.Guest) uint64 { return d.Ledger.Held()[g.UUID].Memory / mib }

func (d *daemon) wantMemory(g *guest.Guest, modules int, size uint64) {
	d.t.Helper()
	def := g.View().Active
	if len(def.Devices.Memories) != modules || def.Memory != size*mib || def.CurrentMemory != size*mib {
		d.t.Errorf("%d modules and %d MiB, of which %d are left by the balloon: want %d and %d", len(def.Devices.Memories), def.Memory/mib, def.CurrentMemory/mib, modules, size)
	}
	if held := d.held(g); held != size {
		d.t.Errorf("the books have %d MiB of a guest with %d", held, size)
	}
}

// Promise: G7
func TestMemoryModule_Attach(t *testing.T) {
	d := newDaemon(t)
	g := d.define(growing("growing", strings.Replace(module, "128", "64", 1)))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.wantMemory(g, 1, 128)
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), module, machine.Affect{Live: true, Config: true}))
	d.wantMemory(g, 2, 256)
	for i, m := range g.View().Active.Devices.Memories {
		if at, is := m.Address.(device.DIMM); !is || at.Slot != uint(i) || at.Base == 0 {
			t.Errorf("module %d is at %#v", i, m.Address)
		}
	}
	if def := g.View().Inactive; len(def.Devices.Memories) != 2 || def.Memory != 256*mib {
		t.Errorf("the config has %d modules and %d MiB", len(def.Devices.Memories), def.Memory/mib)
	}
	refused(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), module, machine.Affect{Live: true}), fault.Unsupported, "slots count '2'")
	d.wantMemory(g, 2, 256)
	d.reopen(func() {})
	g = d.again(g)
	d.wantMemory(g, 2, 256)
	// Nothing in the guest lets a module go: the request stands, and changes nothing.
	ok(t, hotplug.DetachAlias(d.ctx(), g, scope.Daemon("a test"), "dimm1", machine.Affect{Live: true}))
	d.wantMemory(g, 2, 256)
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if held, is := d.Ledger.Held()[g.UUID]; is {
		t.Errorf("the books have %+v of a guest that has ended", held)
	}
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.wantMemory(g, 2, 256)
	ok(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), module, machine.Affect{Config: true}))
	if def := g.View().Inactive; len(def.Devices.Memories) != 1 || def.Memory != 128*mib {
		t.Errorf("without a module the config has %d modules and %d MiB", len(def.Devices.Memories), def.Memory/mib)
	}
}

func TestMemoryModule_Refused(t *testing.T) {
	d := newDaemon(t)
	fixed := d.define(small("fixed"))
	ok(t, launch.Start(d.ctx(), fixed, scope.Daemon("a test"), launch.StartOptions{}))
	refused(t, hotplug.Attach(d.ctx(), fixed, scope.Daemon("a test"), module, machine.Affect{Live: true}), fault.Unsupported, "maxMemory is not defined")
	limited := strings.Replace(growing("limited"), "<vcpu>", "<memtune><hard_limit unit='MiB'>160</hard_limit></memtune><vcpu>", 1)
	g := d.define(limited)
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	for _, c := range []struct {
		old, fresh, says string
		kind             fault.Kind
	}{
		{"128", "128", "hard limit of 163840 KiB", fault.NoCapacity},
		{"128", "512", "exceeds its maxMemory of 524288 KiB", fault.Invalid},
		{"<node>0", "<node>1", "guest node '1'", fault.Invalid},
		{"</memory>", "<address type='dimm' slot='9'/></memory>", "slot '9' exceeds", fault.Unsupported},
		{"</memory>", "<address type='pci' bus='0' slot='9'/></memory>", "cannot be at", fault.Invalid},
	} {
		refused(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), strings.Replace(module, c.old, c.fresh, 1), machine.Affect{Live: true}), c.kind, c.says)
		d.wantMemory(g, 0, 64)
	}
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), strings.Replace(module, "128", "64", 1), machine.Affect{Live: true}))
	d.wantMemory(g, 1, 128)
}

// The plug of a memory module was interrupted. The module then belongs to the guest, or does not exist, and the
// memory ledger agrees.
// Promise: G7
func TestMemoryModule_InterruptedAttach(t *testing.T) {
	for name, c := range map[string]struct {
		made    bool
		modules int
		size    uint64
	}{"made": {true, 1, 192}, "not-made": {false, 0, 64}} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t)
			g := d.define(growing("cut"))
			ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
			before := record(t, g)
			ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), module, machine.Affect{Live: true}))
			plugged := g.View().Active.Devices.Memories[0]
			if !c.made { // another guest never gets one
				ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
				ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
				before = record(t, g)
			}
			d.reopen(func() {
				writeRecord(t, g, before)
				xml, err := domainxml.FormatDevice(plugged, domainxml.Style{Active: true})
				ok(t, err)
				if !c.made { // only its backend
					s, err := qmp.Dial(d.ctx(), filepath.Join(guest.RunDir(g), "monitor.sock"), quiet())
					ok(t, err)
					ok(t, s.Execute(d.ctx(), "object-add", map[string]any{"qom-type": "memory-backend-ram", "id": "memdimm0", "size": 128 * mib}, nil))
					s.Close()
				}
				cutOff(t, g, "attach", map[string]any{"Device": xml, "Undo": []map[string]any{
					{"Command": "object-del", "Args": map[string]any{"id": "memdimm0"}},
					{"Command": "device_del", "Args": map[string]any{"id": plugged.Alias}},
				}})
			})
			g = d.again(g)
			eventually(t, "the plug ended", func() bool {
				return len(operations(t, g)) == 0 && d.held(g) == c.size
			})
			d.wantMemory(g, c.modules, c.size)
			ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), module, machine.Affect{Live: true})) // nothing is in its way
		})
	}
}
