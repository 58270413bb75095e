package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

// DomainDeviceCalls attach, detach and update devices.
func DomainDeviceCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainAttachDevice, domainAttachDevice)
	rpc.On(g, xdr.ProcDomainAttachDeviceFlags, domainAttachDeviceFlags)
	rpc.On(g, xdr.ProcDomainDetachDevice, domainDetachDevice)
	rpc.On(g, xdr.ProcDomainDetachDeviceFlags, domainDetachDeviceFlags)
	rpc.On(g, xdr.ProcDomainDetachDeviceAlias, domainDetachDeviceAlias)
	rpc.On(g, xdr.ProcDomainUpdateDeviceFlags, domainUpdateDeviceFlags)
}

// updateForce changes a medium even if the guest has locked the tray.
const updateForce = 4

// domainAttachDevice, the older call, is for running guests only.
func domainAttachDevice(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainAttachDeviceArgs) (*rpc.Void, error) {
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Attach(ctx, g, s.Scope, args.XML, machine.Affect{Live: true})
}

func domainAttachDeviceFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainAttachDeviceFlagsArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_ATTACH_DEVICE_FLAGS", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Attach(ctx, g, s.Scope, args.XML, affect(args.Flags))
}

func domainDetachDevice(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainDetachDeviceArgs) (*rpc.Void, error) {
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Detach(ctx, g, s.Scope, args.XML, machine.Affect{Live: true})
}

func domainDetachDeviceFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainDetachDeviceFlagsArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_DETACH_DEVICE_FLAGS", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Detach(ctx, g, s.Scope, args.XML, affect(args.Flags))
}

func domainDetachDeviceAlias(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainDetachDeviceAliasArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_DETACH_DEVICE_ALIAS", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.DetachAlias(ctx, g, s.Scope, args.Alias, affect(args.Flags))
}

func domainUpdateDeviceFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainUpdateDeviceFlagsArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_UPDATE_DEVICE_FLAGS", args.Flags, affectBoth|updateForce); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.Update(ctx, g, s.Scope, args.XML, affect(args.Flags), args.Flags&updateForce != 0)
}
