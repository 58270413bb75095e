package guest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// crowd is a registry with guests that have no loops.
func crowd(definitions ...*domain.Definition) *machine.Registry {
	r := newRegistry(machine.Config{})
	for _, d := range definitions {
		seat(r, d)
	}
	return r
}

func seat(r *machine.Registry, d *domain.Definition) {
	g := &machine.Guest{Reg: r, UUID: d.UUID}
	g.Record.Name, g.Inactive = d.Name, d
	g.Publish()
	r.GuestsByUUID[d.UUID] = g
}

func clashes(r *machine.Registry, uuid string) []string {
	return r.Clashes(r.GuestsByUUID[uuid].View(), nil)
}

// Promise: H6
func TestUnique_SharedByGuests(t *testing.T) {
	path := &device.DiskSource{File: "/images/a"}
	for says, change := range map[string]func(*domain.Definition){
		"MAC address 52:54:00:00:00:01": func(d *domain.Definition) { d.Devices.NICs = []*device.NIC{{MAC: "52:54:00:00:00:01"}} },
		"generation ID x":               func(d *domain.Definition) { d.GenID = "x" },
		"vsock CID 7":                   func(d *domain.Definition) { d.Devices.VSock = &device.VSock{CID: 7, Auto: device.Off} },
		"SMBIOS serial S": func(d *domain.Definition) {
			d.SysInfo = &domain.SysInfo{Chassis: []domain.SysInfoEntry{{Name: "serial", Value: "S"}}}
		},
		"UEFI variables /vars":    func(d *domain.Definition) { d.OS.NVRAM.Path = "/vars" },
		"writable disk /images/a": func(d *domain.Definition) { d.Devices.Disks = []*device.Disk{{Device: "disk", Source: path}} },
		"vnc port 5900":           func(d *domain.Definition) { d.Devices.Graphics = []*device.Graphics{{Type: "vnc", Port: 5900}} },
		"": func(d *domain.Definition) { // all that may be shared
			d.GenID, d.Devices.VSock = "auto", &device.VSock{CID: 7, Auto: device.On}
			d.Devices.Disks = []*device.Disk{{Device: "disk", Source: path, Shareable: true}, {Device: "disk", Source: path, ReadOnly: true}, {Device: "cdrom", Source: path}}
			d.Devices.Graphics = []*device.Graphics{{Type: "vnc", Port: 5900, AutoPort: device.On}, {Type: "vnc", Port: -1}}
			d.SysInfo = &domain.SysInfo{System: []domain.SysInfoEntry{{Name: "manufacturer", Value: "S"}}}
		},
	} {
		a, b := &domain.Definition{Name: "a", UUID: "1"}, &domain.Definition{Name: "b", UUID: "2"}
		change(a)
		r := crowd(a)
		if got := clashes(r, "1"); len(got) > 0 {
			t.Errorf("%s: alone, it %q", says, got)
		}
		change(b)
		seat(r, b)
		var want []string
		if says != "" {
			want = []string{`tainted: shares ` + says + ` with domain "b"`}
		}
		if got := clashes(r, "1"); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := r.Clashes(r.GuestsByUUID["1"].View(), func(*machine.Guest) bool { return false }); says != "" && got[0] != `tainted: shares `+says+` with domain 1 more` {
			t.Errorf("a client without the right to the other guest reads %q", got)
		}
		// The other guest is undefined, or defined again.
		g := r.GuestsByUUID["2"]
		g.Inactive = &domain.Definition{Name: "b", UUID: "2"}
		g.Publish()
		if got := clashes(r, "1"); len(got) > 0 {
			t.Errorf("%s: after the other one was changed, it %q", says, got)
		}
	}
}

func TestUnique_SerialInOneGuest(t *testing.T) {
	r := crowd(&domain.Definition{Name: "a", UUID: "1", Devices: device.Set{Disks: []*device.Disk{
		{Target: "vda", Serial: "x"}, {Target: "vdb", Serial: "x"}, {Target: "vdc"}, {Target: "vdd"},
	}}})
	if got, want := clashes(r, "1"), []string{"tainted: disks vda and vdb have the same serial x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A thousand guests share keys with each other. A message stays short, and the cost of asking all of them
// does not grow with the square of their number.
// Promise: H6
func TestUnique_ThousandGuests(t *testing.T) {
	const many = 1000
	r := crowd()
	for i := range many {
		seat(r, &domain.Definition{Name: fmt.Sprintf("g%03d", i), UUID: fmt.Sprint(i), Devices: device.Set{NICs: []*device.NIC{{MAC: "52:54:00:00:00:01"}}}})
	}
	began := time.Now()
	for i := range many {
		got := clashes(r, fmt.Sprint(i))
		if len(got) != 1 || len(got[0]) > 120 {
			t.Fatalf("guest %d: %q", i, got)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("asking %d guests took %v", many, took)
	}
	if got, want := clashes(r, "7")[0], `tainted: shares MAC address 52:54:00:00:00:01 with domain "g000", "g001", "g002", 996 more`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
