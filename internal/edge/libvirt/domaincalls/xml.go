package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/hostcalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// DomainXMLCalls return definitions as XML.
func DomainXMLCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainGetXMLDesc, domainGetXMLDesc)
}

func domainGetXMLDesc(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainGetXMLDescArgs) (*xdr.DomainGetXMLDescRet, error) {
	const call = "DOMAIN_GET_XML_DESC"
	if args.Flags&(rpc.XMLSecure|rpc.XMLMigratable) != 0 {
		if err := s.DenyReadOnly(call, "secure flag"); err != nil {
			return nil, err
		}
	}
	if err := rpc.CheckFlags(call, args.Flags, rpc.XMLSecure|rpc.XMLInactive|rpc.XMLUpdateCPU|rpc.XMLMigratable); err != nil {
		return nil, err
	}
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	def, style := selectDefinition(v, args.Flags)
	if def == nil {
		return nil, fault.New(fault.NotFound, fault.Domain, "domain '%s' is gone", v.Name)
	}
	if args.Flags&rpc.XMLUpdateCPU != 0 && def.CPU.Mode == "host-model" {
		caps, err := h.Emulators.Get(ctx, def.Devices.Emulator)
		if err != nil {
			return nil, err
		}
		def = withHostModel(def, caps)
	}
	doc, err := rpc.RunFair(ctx, func() (string, error) { return domainxml.Format(def, style) })
	return &xdr.DomainGetXMLDescRet{XML: doc}, err
}

// selectDefinition returns the definition that the flags select, and the style to write it in. A
// migratable definition is the running one, with passwords, without the parts that this
// host added.
func selectDefinition(v *guest.View, flags uint32) (*domain.Definition, domainxml.Style) {
	style := domainxml.Style{Secure: flags&(rpc.XMLSecure|rpc.XMLMigratable) != 0, ID: v.ID}
	if v.Active == nil || flags&rpc.XMLInactive != 0 && v.Inactive != nil {
		return v.Inactive, style
	}
	style.Active = flags&(rpc.XMLInactive|rpc.XMLMigratable) == 0
	return v.Active, style
}

// withHostModel expands host-model to the named model and the features that it has on this
// host, if there is such a model.
func withHostModel(def *domain.Definition, caps *qemucaps.Capabilities) *domain.Definition {
	acc := caps.Accelerator(hostcalls.Accelerators[def.Virt])
	m, require, disable, found := hostcalls.CatalogueOf(caps).HostModel(acc)
	if !found {
		return def
	}
	def = def.Clone()
	cpu := &def.CPU
	cpu.Mode, cpu.Match, cpu.Check, cpu.Model, cpu.Vendor = "custom", "exact", "partial", m.Name, hostcalls.CPUVendors[acc.HostModel.Vendor]
	named := map[string]bool{}
	for _, f := range cpu.Features {
		named[f.Name] = true
	}
	add := func(policy string, names []string) {
		for _, name := range names {
			if !named[name] {
				cpu.Features = append(cpu.Features, domain.CPUFeature{Name: name, Policy: policy})
			}
		}
	}
	add("require", require)
	add("disable", disable)
	return def
}
