package domaincalls

import (
	"context"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// DomainInterfaceTuneCalls read and change the bandwidth of a domain's interfaces,
// in KiB and KiB a second.
func DomainInterfaceTuneCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainGetInterfaceParameters, domainGetInterfaceParameters)
	rpc.On(g, xdr.ProcDomainSetInterfaceParameters, domainSetInterfaceParameters)
}

// rateField is one number of the bandwidth limits of an interface.
type rateField struct {
	name string
	of   func(*device.Rate) *uint64
}

var inboundFields = []rateField{
	{"inbound.average", func(r *device.Rate) *uint64 { return &r.Average }},
	{"inbound.peak", func(r *device.Rate) *uint64 { return &r.Peak }},
	{"inbound.burst", func(r *device.Rate) *uint64 { return &r.Burst }},
	{"inbound.floor", func(r *device.Rate) *uint64 { return &r.Floor }},
}

var outboundFields = []rateField{
	{"outbound.average", func(r *device.Rate) *uint64 { return &r.Average }},
	{"outbound.peak", func(r *device.Rate) *uint64 { return &r.Peak }},
	{"outbound.burst", func(r *device.Rate) *uint64 { return &r.Burst }},
}

// findInterface finds an interface of a definition by its MAC address or by the name
// of its tap device.
func findInterface(d *domain.Definition, name string) (*device.NIC, error) {
	for _, n := range d.Devices.NICs {
		if name != "" && (strings.EqualFold(n.MAC, name) || n.Target == name) {
			return n, nil
		}
	}
	return nil, fault.New(fault.Invalid, fault.Call, "cannot find network device %s", name)
}

// domainGetInterfaceParameters returns the bandwidth limits of one interface.
func domainGetInterfaceParameters(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetInterfaceParametersArgs) (*xdr.DomainGetInterfaceParametersRet, error) {
	def, err := paramDefinition(h, "DOMAIN_GET_INTERFACE_PARAMETERS", args.Domain, args.Flags)
	if err != nil {
		return nil, err
	}
	n, err := findInterface(def, args.Device)
	if err != nil {
		return nil, err
	}
	var params []xdr.TypedParam
	add := func(r *device.Rate, fields []rateField) {
		if r == nil {
			r = &device.Rate{}
		}
		for _, f := range fields {
			params = append(params, xdr.TypedParam{Field: f.name, Value: xdr.Uint(uint32(*f.of(r)))})
		}
	}
	add(n.Inbound, inboundFields)
	add(n.Outbound, outboundFields)
	ret := new(xdr.DomainGetInterfaceParametersRet)
	ret.Params, ret.NParams, err = rpc.ParamsOrCount(params, args.NParams)
	return ret, err
}

func domainSetInterfaceParameters(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetInterfaceParametersArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_SET_INTERFACE_PARAMETERS", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	in, out, err := InterfaceRates(args.Params)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Tune(ctx, g, s.Scope, affect(args.Flags), func(d *domain.Definition) error {
		n, err := findInterface(d, args.Device)
		if err != nil {
			return err
		}
		if in != nil {
			n.Inbound = NilIfUnlimited(*in)
		}
		if out != nil {
			n.Outbound = NilIfUnlimited(*out)
		}
		return nil
	})
}

// InterfaceRates returns the limits to set for each direction; nil for a direction
// without parameters. A parameter that is missing in a direction with others is zero.
func InterfaceRates(params []xdr.TypedParam) (in, out *device.Rate, err error) {
	set := func(rate **device.Rate, fields []rateField, p xdr.TypedParam) (known bool, err error) {
		for _, f := range fields {
			if f.name == p.Field {
				if *rate == nil {
					*rate = &device.Rate{}
				}
				return true, toUint64(p.Value, f.of(*rate))
			}
		}
		return false, nil
	}
	for _, p := range params {
		known, err := set(&in, inboundFields, p)
		if !known {
			known, err = set(&out, outboundFields, p)
		}
		if err != nil {
			return nil, nil, fault.Wrap(err, fault.Invalid, fault.Call, "cannot set %s", p.Field)
		}
		if !known {
			return nil, nil, fault.New(fault.Invalid, fault.Call, "parameter '%s' not supported", p.Field)
		}
	}
	return in, out, nil
}

// NilIfUnlimited returns nil for a rate without average and floor, which removes the limit.
func NilIfUnlimited(r device.Rate) *device.Rate {
	if r.Average == 0 && r.Floor == 0 {
		return nil
	}
	return &r
}
