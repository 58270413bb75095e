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

// FindGuest finds the guest that a call is about, by its UUID: name and ID may have
// changed since the client read them.
func FindGuest(h *rpc.Handlers, d xdr.Domain) (*guest.Guest, error) {
	return h.Guests.ByUUID(rpc.FormatUUID(d.UUID))
}

// ViewOf returns the current view of the guest that a call is about.
func ViewOf(h *rpc.Handlers, d xdr.Domain) (*guest.View, error) {
	g, err := FindGuest(h, d)
	if err != nil {
		return nil, err
	}
	return g.View(), nil
}

// activeGuest finds a guest that must be running, with its view.
func activeGuest(h *rpc.Handlers, d xdr.Domain) (*guest.Guest, *guest.View, error) {
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

// WireDomain returns a guest's name, UUID and ID as messages have them.
func WireDomain(v *guest.View) (xdr.Domain, error) {
	id, err := rpc.ParseUUID(v.UUID)
	return xdr.Domain{Name: v.Name, UUID: id, ID: int32(v.ID)}, err
}

// domainReply returns the reply of calls that return a domain, or the error.
func domainReply(g *guest.Guest, err error) (*xdr.WithDomain, error) {
	if err != nil {
		return nil, err
	}
	d, err := WireDomain(g.View())
	return &xdr.WithDomain{Domain: d}, err
}

// The definitions that a call affects (virDomainModificationImpact); neither: the running
// one, or the only one.
const (
	affectLive   = 1
	AffectConfig = 2
	affectBoth   = affectLive | AffectConfig
)

// affect converts libvirt's flags to the definitions that a call changes.
func affect(flags uint32) machine.Affect {
	return machine.Affect{Live: flags&affectLive != 0, Config: flags&AffectConfig != 0}
}

// definitionByFlags returns the definition that the flags of a getter select.
func definitionByFlags(v *guest.View, flags uint32) (*domain.Definition, error) {
	switch {
	case flags&affectBoth == affectBoth:
		return nil, fault.New(fault.Invalid, fault.Call, "the flags live and config exclude each other in a call that reads")
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

// validationError gives an error of a document that was to be validated libvirt's code
// for an invalid schema: then clients offer to continue without validation. An error of
// a document that is not XML keeps its code.
func validationError(doc string, validate bool, err error) error {
	if !validate || !fault.Is(err, fault.Invalid) || fault.About(err) != fault.XML {
		return err
	}
	if _, notXML := xmltree.Parse(doc); notXML != nil {
		return err
	}
	return rpc.WithCode(rpc.CodeXMLSchema, err)
}

// domainCall makes a handler, for a call without flags, that runs a function on a guest.
func domainCall(do func(context.Context, *guest.Guest, scope.Scope) error) func(context.Context, *rpc.Handlers, *rpc.Request, *xdr.WithDomain) (*rpc.Void, error) {
	return func(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithDomain) (*rpc.Void, error) {
		g, err := FindGuest(h, args.Domain)
		if err != nil {
			return nil, err
		}
		return nil, do(ctx, g, s.Scope)
	}
}

// flaggedCall makes a handler, for a call with flags, that runs a function on a guest.
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
