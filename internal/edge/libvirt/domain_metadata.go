package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
)

// domainMetadataCalls read and change users' notes about a domain.
func domainMetadataCalls(g group) {
	on(g, xdr.ProcDomainGetMetadata, (*handlers).domainGetMetadata)
	on(g, xdr.ProcDomainSetMetadata, (*handlers).domainSetMetadata)
}

// metadataSorts are the types of metadata, by libvirt's number.
var metadataSorts = []guest.MetadataKind{guest.Description, guest.Title, guest.Element}

func metadataSort(number int32) (guest.MetadataKind, error) {
	if number < 0 || int(number) >= len(metadataSorts) {
		return "", fault.New(fault.Invalid, fault.Call, "unknown metadata type %d", number)
	}
	return metadataSorts[number], nil
}

func (h *handlers) domainGetMetadata(_ context.Context, _ *request, args *xdr.DomainGetMetadataArgs) (*xdr.DomainGetMetadataRet, error) {
	if err := checkFlags("DOMAIN_GET_METADATA", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	kind, err := metadataSort(args.Type)
	if err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	text, err := guest.Metadata(g, kind, given(args.URI), affect(args.Flags))
	return &xdr.DomainGetMetadataRet{Metadata: text}, err
}

func (h *handlers) domainSetMetadata(ctx context.Context, s *request, args *xdr.DomainSetMetadataArgs) (*void, error) {
	if err := checkFlags("DOMAIN_SET_METADATA", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	kind, err := metadataSort(args.Type)
	if err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, guest.SetMetadata(ctx, g, s.scope, kind, args.Metadata, given(args.Key), given(args.URI), affect(args.Flags))
}
