package provision

import (
	"context"
	"fmt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// ConnectNIC gives a NIC its interface on the host. It returns nil for a NIC that QEMU serves alone.
func ConnectNIC(ctx context.Context, r *machine.Registry, sc scope.Scope, def *domain.Definition, n *device.NIC, note func(ifName string) error) (*device.NICAttachment, func(context.Context) error, error) {
	if n.Type == "user" {
		return nil, nil, nil
	}
	if def.Virt != "kvm" {
		// vhost speeds up KVM guests only. An emulated guest gains nothing, and libvirt gives it none.
		plain := *n
		plain.Backend = "qemu"
		n = &plain
	}
	a, release, err := r.Networks.AttachNIC(ctx, sc, n, def.Name, note)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot connect interface %s: %w", n.MAC, err)
	}
	return a, func(context.Context) error { release(); return nil }, nil
}

// ReadoptByAlias finds the interface of an adopted guest.
func ReadoptByAlias(r *machine.Registry, run *machine.Instance, held machine.HeldNIC) (func(context.Context) error, error) {
	n, ok := run.Definition.Devices.ByAlias(held.Alias).(*device.NIC)
	if !ok {
		return nil, fault.New(fault.NotFound, fault.Device, "the guest has no interface %s", held.Alias)
	}
	return ReadoptNIC(r, run, n, &held)
}

// ReadoptNIC takes hold again of a NIC's interface on the host.
func ReadoptNIC(r *machine.Registry, run *machine.Instance, n *device.NIC, held *machine.HeldNIC) (func(context.Context) error, error) {
	if held.User != nil {
		return endUserNetwork(r, *held.User, run.UUID, run.Log), nil
	}
	release, err := r.Networks.AdoptNIC(n, held.IfName, run.Name)
	if err != nil {
		return nil, err
	}
	return func(context.Context) error { release(); return nil }, nil
}
