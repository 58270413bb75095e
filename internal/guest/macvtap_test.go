package guest

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A daemon is killed while it creates a macvtap. It leaves the device's name to the next daemon, which removes it.
// No macvtap can be made on the loopback, so this attempt fails in any case.
// Promise: F1
func TestNIC_MacvtapJustMade(t *testing.T) {
	records, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close() //nolint:errcheck // nothing is in it
	log := slog.New(slog.DiscardHandler)
	nets, err := network.Open(t.Context(), network.Config{Data: t.TempDir(), Run: t.TempDir(), Instance: "noted", Store: records, Events: event.NewLog(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer nets.Close()
	def, err := domainxml.Parse(`<domain type='qemu'><name>noted</name><uuid>6f2c1c5e-9a3b-4a39-8d0d-0a1f6d4f1a01</uuid><memory>1024</memory>
		<os><type arch='x86_64' machine='pc'>hvm</type></os><devices>
		<interface type='direct'><mac address='52:54:00:01:09:01'/><source dev='lo' mode='bridge'/><model type='virtio'/></interface></devices></domain>`, domainxml.Options{})
	if err != nil {
		t.Fatal(err)
	}
	def.Devices.NICs[0].Alias = "net0"
	g := newGuest(newRegistry(machine.Config{Networks: nets, Log: log}), def.Name, def.UUID)
	r := machine.NewInstance(machine.RunRecord{Name: def.Name, UUID: def.UUID}, t.TempDir(), kernel.Root{}, log)
	r.Definition = def
	l := &launch.Launch{Guest: g, Sc: scope.Daemon("a test"), Instance: r}
	if err := l.AttachNICs(t.Context()); err == nil {
		t.Fatal("the loopback has a macvtap")
	}
	rec, err := machine.ReadRecord(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if rec == nil || len(rec.NICs) != 1 || rec.NICs[0].Alias != "net0" || !strings.HasPrefix(rec.NICs[0].IfName, "macvtap") {
		t.Errorf("a start that is cut off leaves %+v", rec)
	}

	if err := g.Reg.SetOperations(r, nil); err != nil {
		t.Fatal(err)
	}
	nic := &device.NIC{Info: def.Devices.NICs[0].Info, Type: "direct", HostDev: "lo", DirectMode: "bridge", MAC: "52:54:00:01:09:02"}
	a := &hotplug.AttachOp{R: r, Dev: nic, Plan: &qemu.Plan{Definition: def}}
	if err := a.Describe(); err != nil {
		t.Fatal(err)
	}
	op, err := r.BeginOperation(t.Context(), scope.Daemon("a test"), hotplug.AttachKind.Name, a)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Connect(t.Context(), scope.Daemon("a test"), nic); err == nil {
		t.Fatal("the loopback has a macvtap")
	}
	noted, err := operation.FileJournal{Dir: r.Dir}.Read()
	if err != nil || len(noted) != 1 || !strings.Contains(string(noted[0].Payload), `"IfName":"macvtap`) {
		t.Errorf("a plug that is cut off leaves %+v (%v)", noted, err)
	}
	if err := op.Run(t.Context()); err == nil {
		t.Error("it is plugged in")
	}
	if noted, err := (operation.FileJournal{Dir: r.Dir}).Read(); err != nil || len(noted) > 0 {
		t.Errorf("a plug that failed is left to the next daemon: %+v (%v)", noted, err)
	}
}
