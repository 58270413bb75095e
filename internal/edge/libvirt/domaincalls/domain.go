package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// FindGuest finds the guest that a call is about. Its UUID alone counts: name and
// ID may have changed since the client learnt them.
func FindGuest(h *rpc.Handlers, d xdr.Domain) (*guest.Guest, error) {
	return h.Guests.ByUUID(rpc.FormatUUID(d.UUID))
}

// ViewOf finds a guest's present view.
func ViewOf(h *rpc.Handlers, d xdr.Domain) (*guest.View, error) {
	g, err := FindGuest(h, d)
	if err != nil {
		return nil, err
	}
	return g.View(), nil
}

// active finds the view of a guest that must have a process.
func active(h *rpc.Handlers, d xdr.Domain) (*guest.Guest, *guest.View, error) {
	g, err := FindGuest(h, d)
	if err != nil {
		return nil, nil, err
	}
	v := g.View()
	if v.Active == nil {
		return nil, nil, errNotRunning()
	}
	return g, v, nil
}

func errNotRunning() error {
	return fault.New(fault.WrongState, fault.Domain, "domain is not running")
}

// WireDomain names a guest on the wire.
func WireDomain(v *guest.View) (xdr.Domain, error) {
	id, err := rpc.ParseUUID(v.UUID)
	return xdr.Domain{Name: v.Name, UUID: id, ID: int32(v.ID)}, err
}

// reference is the result of calls that give a domain.
func reference(g *guest.Guest, err error) (*xdr.WithDomain, error) {
	if err != nil {
		return nil, err
	}
	d, err := WireDomain(g.View())
	return &xdr.WithDomain{Domain: d}, err
}

// Which definition a call affects; neither: the running one, or the only one.
const (
	affectLive   = 1
	AffectConfig = 2
	affectBoth   = affectLive | AffectConfig
)

// affect converts libvirt's flags to the definitions that a call changes.
func affect(flags uint32) machine.Affect {
	return machine.Affect{Live: flags&affectLive != 0, Config: flags&AffectConfig != 0}
}

// definition gives the definition that a reader's flags mean.
func definition(v *guest.View, flags uint32) (*domain.Definition, error) {
	switch {
	case flags&affectBoth == affectBoth:
		return nil, fault.New(fault.Invalid, fault.Call, "a reader asks for the live or for the config definition, not for both")
	case flags&affectLive != 0 && v.Active == nil:
		return nil, errNotRunning()
	case flags&AffectConfig != 0 && v.Inactive == nil:
		return nil, fault.New(fault.WrongState, fault.Domain, "transient domains do not have any persistent config")
	case flags&AffectConfig != 0:
		return v.Inactive, nil
	}
	if v.Current() == nil && v.Quarantined {
		return nil, fault.New(fault.WrongState, fault.Domain, "no definition of domain '%s' is known: %s", v.Name, v.Messages[0])
	}
	if v.Current() == nil {
		return nil, fault.New(fault.NotFound, fault.Domain, "domain '%s' is gone", v.Name)
	}
	return v.Current(), nil
}

// asValidation gives the error of a document that was to be validated the code
// on which clients offer to go on without that. One that is not XML at all
// keeps its own.
func asValidation(doc string, validate bool, err error) error {
	if !validate || !fault.Is(err, fault.Invalid) || fault.About(err) != fault.XML {
		return err
	}
	if _, broken := xmltree.Parse(doc); broken != nil {
		return err
	}
	return rpc.WithCode(rpc.CodeXMLSchema, err)
}

// domainCall makes a handler that runs one method of a guest, without flags.
func domainCall(do func(context.Context, *guest.Guest, scope.Scope) error) func(context.Context, *rpc.Handlers, *rpc.Request, *xdr.WithDomain) (*rpc.Void, error) {
	return func(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithDomain) (*rpc.Void, error) {
		g, err := FindGuest(h, args.Domain)
		if err != nil {
			return nil, err
		}
		return nil, do(ctx, g, s.Scope)
	}
}

// flaggedCall makes a handler that runs one function on a guest and accepts the given flags.
func flaggedCall(call string, known uint32, do func(ctx context.Context, sc scope.Scope, g *guest.Guest, flags uint32) error,
) func(context.Context, *rpc.Handlers, *rpc.Request, *xdr.WithDomainFlags) (*rpc.Void, error) {
	return func(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithDomainFlags) (*rpc.Void, error) {
		if err := rpc.CheckFlags(call, args.Flags, known); err != nil {
			return nil, err
		}
		g, err := FindGuest(h, args.Domain)
		if err != nil {
			return nil, err
		}
		return nil, do(ctx, s.Scope, g, args.Flags)
	}
}
