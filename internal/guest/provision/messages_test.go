package provision

import (
	"slices"
	"testing"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

func displays(kind, address string, password bool) []*device.Graphics {
	return []*device.Graphics{{Type: "vnc", Listens: []device.Listen{{Type: kind, Address: address}}, HasPassword: password}}
}

// Promise: A10
func TestRemarks(t *testing.T) {
	caps := &qemucaps.Capabilities{
		Machines:     []qemucaps.Machine{{Name: "pc-i440fx-1.4", Deprecated: true}, {Name: "pc-i440fx-7.2", Alias: "pc"}},
		Accelerators: []qemucaps.Accelerator{{Name: "kvm", Models: []qemucaps.CPUModel{{Name: "Old", Deprecated: true}, {Name: "New"}}}, {Name: "tcg"}},
	}
	for name, c := range map[string]struct {
		change     func(*domain.Definition)
		want       string
		deprecates bool
	}{
		"nothing":     {func(*domain.Definition) {}, "", false},
		"arguments":   {func(d *domain.Definition) { d.QEMUArgs = []string{"-S"} }, "tainted: custom configuration parameters specified", false},
		"environment": {func(d *domain.Definition) { d.QEMUEnv = []domain.EnvVar{{Name: "A"}} }, "tainted: custom configuration parameters specified", false},
		"host's CPU":  {func(d *domain.Definition) { d.CPU = domain.CPU{Mode: "host-passthrough"} }, "tainted: use of host cpu passthrough", false},
		"machine":     {func(d *domain.Definition) { d.OS.Machine = "pc-i440fx-1.4" }, "deprecated configuration: machine type 'pc-i440fx-1.4'", true},
		"display":     {func(d *domain.Definition) { d.Devices.Graphics = displays("address", "0.0.0.0", false) }, "insecure: the vnc display listens on 0.0.0.0 without a password: make it listen on 127.0.0.1 or a socket, or set a password", false},
		"network":     {func(d *domain.Definition) { d.Devices.Graphics = displays("network", "10.0.0.1", false) }, "insecure: the vnc display listens on 10.0.0.1 without a password: make it listen on 127.0.0.1 or a socket, or set a password", false},
		"password":    {func(d *domain.Definition) { d.Devices.Graphics = displays("address", "::", true) }, "", false},
		"loopback":    {func(d *domain.Definition) { d.Devices.Graphics = displays("address", "::1", false) }, "", false},
		"no address":  {func(d *domain.Definition) { d.Devices.Graphics = displays("address", "", false) }, "", false},
		"socket":      {func(d *domain.Definition) { d.Devices.Graphics = displays("socket", "", false) }, "", false},
		"name":        {func(d *domain.Definition) { d.Devices.Graphics = displays("address", "host.example", false) }, "insecure: the vnc display listens on host.example without a password: make it listen on 127.0.0.1 or a socket, or set a password", false},
		"CPU":         {func(d *domain.Definition) { d.CPU.Model = "Old" }, "deprecated configuration: CPU model 'Old'", true},
	} {
		def := &domain.Definition{OS: domain.OS{Machine: "pc-i440fx-7.2"}, CPU: domain.CPU{Mode: "custom", Model: "New"}}
		c.change(def)
		var want []string
		if c.want != "" {
			want = []string{c.want}
		}
		if got := Remarks(def, caps); !slices.Equal(got, want) || machine.Deprecates(c.want) != c.deprecates {
			t.Errorf("%s: got %q", name, got)
		}
	}
}
