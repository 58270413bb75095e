package domaincalls

import (
	"reflect"
	"testing"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// TestSelectDefinition_Flags: which of a guest's definitions each flag shows, and how.
func TestSelectDefinition_Flags(t *testing.T) {
	runs, kept := new(domain.Definition), new(domain.Definition)
	off := &guest.View{ID: -1, Inactive: kept}
	transient := &guest.View{ID: 7, Active: runs}
	both := &guest.View{ID: 7, Active: runs, Inactive: kept}
	live, bare := domainxml.Style{Active: true, ID: 7}, domainxml.Style{ID: 7}
	secure := func(s domainxml.Style) domainxml.Style { s.Secure = true; return s }
	for _, c := range []struct {
		view  *guest.View
		flags uint32
		want  *domain.Definition
		style domainxml.Style
	}{
		{off, 0, kept, domainxml.Style{ID: -1}},
		{off, rpc.XMLInactive, kept, domainxml.Style{ID: -1}},
		{off, rpc.XMLMigratable, kept, domainxml.Style{ID: -1, Secure: true}},
		{transient, 0, runs, live},
		{transient, rpc.XMLInactive, runs, bare},
		{both, 0, runs, live},
		{both, rpc.XMLSecure, runs, secure(live)},
		{both, rpc.XMLInactive, kept, bare},
		{both, rpc.XMLInactive | rpc.XMLSecure, kept, secure(bare)},
		{both, rpc.XMLUpdateCPU, runs, live},
		{both, rpc.XMLMigratable, runs, secure(bare)},
	} {
		if def, style := selectDefinition(c.view, c.flags); def != c.want || style != c.style {
			t.Errorf("flags %d of %d: the kept one %v, %+v", c.flags, c.view.ID, def == kept, style)
		}
	}
}

func TestWithHostModel_Expanded(t *testing.T) {
	caps := &qemucaps.Capabilities{Accelerators: []qemucaps.Accelerator{
		{
			Name: "kvm", Usable: true, Models: []qemucaps.CPUModel{{Name: "Haswell", Features: []string{"abm", "fpu", "rtm"}}},
			HostModel: qemucaps.HostModel{
				Vendor: "GenuineIntel", Base: "Haswell", Features: []string{"fpu", "kvm-asyncpf", "tsc-adjust", "vmx"},
				Added: []string{"kvm-asyncpf", "tsc-adjust", "vmx"}, Removed: []string{"abm", "rtm"},
			},
		},
		{Name: "tcg"},
	}}
	cpu := domain.CPU{Mode: "host-model", Fallback: "forbid", Features: []domain.CPUFeature{{Name: "vmx", Policy: "disable"}}}
	def := &domain.Definition{Virt: "kvm", CPU: cpu}
	want := domain.CPU{
		Mode: "custom", Match: "exact", Check: "partial", Model: "Haswell", Fallback: "forbid", Vendor: "Intel",
		Features: []domain.CPUFeature{
			{Name: "vmx", Policy: "disable"}, // the user's word counts
			{Name: "tsc_adjust", Policy: "require"},
			{Name: "abm", Policy: "disable"}, // QEMU's Haswell has it, and libvirt's does not
			{Name: "rtm", Policy: "disable"},
		},
	}
	if got := withHostModel(def, caps).CPU; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if !reflect.DeepEqual(def.CPU, cpu) {
		t.Errorf("the guest's own definition has changed: %+v", def.CPU)
	}
	if def := (&domain.Definition{Virt: "qemu", CPU: cpu}); withHostModel(def, caps) != def {
		t.Error("a host model that resembles no named one was written out")
	}
}
