package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
)

// DomainLifecycleActionCalls set the action after a domain powers off, reboots or crashes.
func DomainLifecycleActionCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainSetLifecycleAction, domainSetLifecycleAction)
}

// Lifecycle types and actions, by libvirt's numbers.
var (
	lifecycleTypes   = []guest.LifecycleEvent{guest.PoweredOff, guest.Rebooted, guest.Crashed}
	lifecycleActions = []string{"destroy", "restart", "rename-restart", "preserve", "coredump-destroy", "coredump-restart"}
)

func domainSetLifecycleAction(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetLifecycleActionArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_SET_LIFECYCLE_ACTION", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	if args.Type >= uint32(len(lifecycleTypes)) || args.Action >= uint32(len(lifecycleActions)) {
		return nil, fault.New(fault.Invalid, fault.Call, "there is no lifecycle type %d with action %d", args.Type, args.Action)
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, guest.SetPolicy(ctx, g, s.Scope, lifecycleTypes[args.Type], lifecycleActions[args.Action], affect(args.Flags))
}
