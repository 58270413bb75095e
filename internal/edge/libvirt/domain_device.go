package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

// domainDeviceCalls plug, unplug and change devices.
func domainDeviceCalls(g group) {
	on(g, xdr.ProcDomainAttachDevice, (*handlers).domainAttachDevice)
	on(g, xdr.ProcDomainAttachDeviceFlags, (*handlers).domainAttachDeviceFlags)
	on(g, xdr.ProcDomainDetachDevice, (*handlers).domainDetachDevice)
	on(g, xdr.ProcDomainDetachDeviceFlags, (*handlers).domainDetachDeviceFlags)
	on(g, xdr.ProcDomainDetachDeviceAlias, (*handlers).domainDetachDeviceAlias)
	on(g, xdr.ProcDomainUpdateDeviceFlags, (*handlers).domainUpdateDeviceFlags)
}

// updateForce changes a device although the guest holds on to it.
const updateForce = 4

// domainAttachDevice, the older call, is for running guests alone.
func (h *handlers) domainAttachDevice(ctx context.Context, s *request, args *xdr.DomainAttachDeviceArgs) (*void, error) {
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Attach(ctx, g, s.scope, args.XML, machine.Affect{Live: true})
}

func (h *handlers) domainAttachDeviceFlags(ctx context.Context, s *request, args *xdr.DomainAttachDeviceFlagsArgs) (*void, error) {
	if err := checkFlags("DOMAIN_ATTACH_DEVICE_FLAGS", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Attach(ctx, g, s.scope, args.XML, affect(args.Flags))
}

func (h *handlers) domainDetachDevice(ctx context.Context, s *request, args *xdr.DomainDetachDeviceArgs) (*void, error) {
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Detach(ctx, g, s.scope, args.XML, machine.Affect{Live: true})
}

func (h *handlers) domainDetachDeviceFlags(ctx context.Context, s *request, args *xdr.DomainDetachDeviceFlagsArgs) (*void, error) {
	if err := checkFlags("DOMAIN_DETACH_DEVICE_FLAGS", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Detach(ctx, g, s.scope, args.XML, affect(args.Flags))
}

func (h *handlers) domainDetachDeviceAlias(ctx context.Context, s *request, args *xdr.DomainDetachDeviceAliasArgs) (*void, error) {
	if err := checkFlags("DOMAIN_DETACH_DEVICE_ALIAS", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.DetachAlias(ctx, g, s.scope, args.Alias, affect(args.Flags))
}

func (h *handlers) domainUpdateDeviceFlags(ctx context.Context, s *request, args *xdr.DomainUpdateDeviceFlagsArgs) (*void, error) {
	if err := checkFlags("DOMAIN_UPDATE_DEVICE_FLAGS", args.Flags, affectBoth|updateForce); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Update(ctx, g, s.scope, args.XML, affect(args.Flags), args.Flags&updateForce != 0)
}
