package hotplug

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// isClaimedBy reports whether the instance has claimed the device.
func isClaimedBy(c *machine.DeviceClaims, at kernel.PCIAddress, by *machine.Instance) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.Held[at] == by
}

func claimName(at kernel.PCIAddress) string { return "claim of host device " + at.String() }

func returnName(at kernel.PCIAddress) string { return "host device " + at.String() }

// claimDevice claims a PCI device for an instance. The release drops the claim.
func claimDevice(r *machine.Registry, at kernel.PCIAddress, by *machine.Instance) (release func(context.Context) error, err error) {
	if err := provision.TakeDevice(&r.Devices, at, by); err != nil {
		return nil, err
	}
	return func(context.Context) error { provision.DropDevice(&r.Devices, at, by); return nil }, nil
}

// ClaimUntilEnd claims a PCI device until the instance has ended.
func ClaimUntilEnd(r *machine.Registry, run *machine.Instance, at kernel.PCIAddress) error {
	release, err := claimDevice(r, at, run)
	if err == nil {
		run.PushRelease(claimName(at), release)
	}
	return err
}

// dropClaimAt drops the claim on a PCI device that the guest no longer has. It runs in the loop.
func dropClaimAt(r *machine.Instance, at kernel.PCIAddress) {
	if r.ExitHandled { // the end of the instance drops it
		return
	}
	if drop := r.TakeRelease(claimName(at)); drop != nil {
		_ = drop(context.Background()) // it never fails
	}
}

// ReturnAtEnd pushes the release that returns a device to the host's driver.
func ReturnAtEnd(r *machine.Registry, run *machine.Instance, at kernel.PCIAddress) {
	run.PushRelease(returnName(at), ReturnDevice(r, run, at))
}

// ReturnDevice returns a device to the host's driver, unless another run has claimed it: a late attempt no
// longer has a claim.
func ReturnDevice(r *machine.Registry, run *machine.Instance, at kernel.PCIAddress) func(context.Context) error {
	return func(ctx context.Context) error {
		if !isClaimedBy(&r.Devices, at, run) {
			if provision.TakeDevice(&r.Devices, at, run) != nil {
				return nil
			}
			defer provision.DropDevice(&r.Devices, at, run)
		}
		return r.Kernel.ReturnPCI(ctx, at)
	}
}

// ReholdClaims claims the devices of an adopted guest.
func ReholdClaims(r *machine.Registry, run *machine.Instance) {
	for _, d := range run.Definition.Devices.HostDevices {
		if d.Type != "pci" {
			continue
		}
		if err := ClaimUntilEnd(r, run, provision.HostAddress(d)); err != nil {
			run.Log.Error("cannot claim a device of an adopted guest", "error", err)
		}
	}
}

// PCIFunction returns the host address of a PCI device. Nil: the device is not one.
func PCIFunction(dev device.Device) *kernel.PCIAddress {
	d, is := dev.(*device.HostDevice)
	if !is || d.Type != "pci" {
		return nil
	}
	at := provision.HostAddress(d)
	return &at
}
