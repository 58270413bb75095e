package guest

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/event"
	"github.com/lodge-kvm/lodge/kernel"
	"github.com/lodge-kvm/lodge/network"
	"github.com/lodge-kvm/lodge/store"
)

// A daemon that is killed as it makes a macvtap leaves its name to the next one, which removes it. The
// loopback has none: what is made here fails in any case.
func TestAMacvtapThatIsJustMadeIsKnownToTheNextDaemon(t *testing.T) {
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
	g := newGuest(newRegistry(Config{Networks: nets, Log: log}), def.Name, def.UUID)
	r := newRun(runRecord{Name: def.Name, UUID: def.UUID}, t.TempDir(), kernel.Root{}, log)
	r.def = def
	l := &launching{g: g, run: r}
	if err := l.attachNICs(t.Context()); err == nil {
		t.Fatal("the loopback has a macvtap")
	}
	rec, err := readRunRecord(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	if rec == nil || len(rec.NICs) != 1 || rec.NICs[0].Alias != "net0" || !strings.HasPrefix(rec.NICs[0].IfName, "macvtap") {
		t.Errorf("a start that is cut off leaves %+v", rec)
	}

	nic := device.NIC{Info: def.Devices.NICs[0].Info, Type: "direct", HostDev: "lo", DirectMode: "bridge", MAC: "52:54:00:01:09:02"}
	held := &plugged{}
	if _, _, err := g.reg.attachNIC(r.notingNIC(t.Context(), &nic, held, twin{}), def, &nic); err == nil {
		t.Fatal("the loopback has a macvtap")
	}
	p := readPluggingOf(t, r)
	if p == nil || p.NIC == nil || !strings.HasPrefix(p.NIC.IfName, "macvtap") || len(p.Undo) != 0 {
		t.Errorf("a plug that is cut off leaves %+v", p)
	}
	if g.takeBackPlug(t.Context(), r, &nic, held); readPluggingOf(t, r) != nil {
		t.Error("a plug that failed is left to the next daemon")
	}
}

func readPluggingOf(t *testing.T, r *run) *plugging {
	t.Helper()
	p, err := readPlugging(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
