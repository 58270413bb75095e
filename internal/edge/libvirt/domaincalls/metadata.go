package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
)

// DomainMetadataCalls read and change the title, description and metadata elements of a domain.
func DomainMetadataCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainGetMetadata, domainGetMetadata)
	rpc.On(g, xdr.ProcDomainSetMetadata, domainSetMetadata)
}

// metadataKinds are the types of metadata, by libvirt's numbers.
var metadataKinds = []guest.MetadataKind{guest.Description, guest.Title, guest.Element}

func metadataKind(number int32) (guest.MetadataKind, error) {
	if number < 0 || int(number) >= len(metadataKinds) {
		return "", fault.New(fault.Invalid, fault.Call, "unknown metadata type %d", number)
	}
	return metadataKinds[number], nil
}

func domainGetMetadata(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetMetadataArgs) (*xdr.DomainGetMetadataRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_METADATA", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	kind, err := metadataKind(args.Type)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	text, err := guest.Metadata(g, kind, rpc.StringValue(args.URI), affect(args.Flags))
	return &xdr.DomainGetMetadataRet{Metadata: text}, err
}

func domainSetMetadata(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetMetadataArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_SET_METADATA", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	kind, err := metadataKind(args.Type)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, guest.SetMetadata(ctx, g, s.Scope, kind, args.Metadata, rpc.StringValue(args.Key), rpc.StringValue(args.URI), affect(args.Flags))
}
