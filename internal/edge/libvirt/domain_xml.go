package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// domainXMLCalls show definitions.
func domainXMLCalls(g group) {
	on(g, xdr.ProcDomainGetXMLDesc, (*handlers).domainGetXMLDesc)
}

// Flags of a domain's XML.
const (
	xmlSecure     = 1
	xmlInactive   = 2
	xmlUpdateCPU  = 4
	xmlMigratable = 8
)

func (h *handlers) domainGetXMLDesc(ctx context.Context, s *request, args *xdr.DomainGetXMLDescArgs) (*xdr.DomainGetXMLDescRet, error) {
	const call = "DOMAIN_GET_XML_DESC"
	if args.Flags&(xmlSecure|xmlMigratable) != 0 {
		if err := s.denyReadOnly(call, "secure flag"); err != nil {
			return nil, err
		}
	}
	if err := checkFlags(call, args.Flags, xmlSecure|xmlInactive|xmlUpdateCPU|xmlMigratable); err != nil {
		return nil, err
	}
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	def, style := shown(v, args.Flags)
	if def == nil {
		return nil, fault.New(fault.NotFound, fault.Domain, "domain '%s' is gone", v.Name)
	}
	if args.Flags&xmlUpdateCPU != 0 && def.CPU.Mode == "host-model" {
		caps, err := h.Emulators.Get(ctx, def.Devices.Emulator)
		if err != nil {
			return nil, err
		}
		def = withHostModel(def, caps)
	}
	doc, err := inTurn(ctx, func() (string, error) { return domainxml.Format(def, style) })
	return &xdr.DomainGetXMLDescRet{XML: doc}, err
}

// shown gives the definition that the flags mean, and the style to write it in. A
// migratable definition is the running one, passwords included, without the parts that
// only this host added.
func shown(v *guest.View, flags uint32) (*domain.Definition, domainxml.Style) {
	style := domainxml.Style{Secure: flags&(xmlSecure|xmlMigratable) != 0, ID: v.ID}
	if v.Active == nil || flags&xmlInactive != 0 && v.Inactive != nil {
		return v.Inactive, style
	}
	style.Active = flags&(xmlInactive|xmlMigratable) == 0
	return v.Active, style
}

// withHostModel replaces host-model by its meaning on this host, if a named model
// comes close to it.
func withHostModel(def *domain.Definition, caps *qemucaps.Capabilities) *domain.Definition {
	acc := caps.Accelerator(accelerators[def.Virt])
	m, require, disable, found := catalogueOf(caps).hostModel(acc)
	if !found {
		return def
	}
	def = def.Clone()
	cpu := &def.CPU
	cpu.Mode, cpu.Match, cpu.Check, cpu.Model, cpu.Vendor = "custom", "exact", "partial", m.Name, cpuVendors[acc.HostModel.Vendor]
	said := map[string]bool{}
	for _, f := range cpu.Features {
		said[f.Name] = true
	}
	add := func(policy string, names []string) {
		for _, name := range names {
			if !said[name] {
				cpu.Features = append(cpu.Features, domain.CPUFeature{Name: name, Policy: policy})
			}
		}
	}
	add("require", require)
	add("disable", disable)
	return def
}
