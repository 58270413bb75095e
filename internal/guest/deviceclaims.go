package guest

import (
	"context"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// deviceClaims records which run has each PCI device of the host, so that no two runs take the same one. A
// run claims a device before it looks at the device's driver. It drops the claim after its record no longer
// names the device. The zero value is ready.
type deviceClaims struct {
	mu   sync.Mutex
	held map[kernel.PCIAddress]*run
}

// take claims a device. It refuses one that is claimed already, also by the same run.
func (c *deviceClaims) take(at kernel.PCIAddress, by *run) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch other := c.held[at]; {
	case other != nil && other.Name == "":
		return fault.New(fault.Busy, fault.NodeDevice, "the driver of PCI device %s is just being changed; try again when that is over", at)
	case other != nil:
		return fault.New(fault.Busy, fault.NodeDevice, "PCI device %s is in use by domain '%s': detach it there, or shut that domain off first", at, other.Name)
	case c.held == nil:
		c.held = map[kernel.PCIAddress]*run{}
	}
	c.held[at] = by
	return nil
}

// has reports whether the run has claimed the device.
func (c *deviceClaims) has(at kernel.PCIAddress, by *run) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[at] == by
}

// drop ends a claim. It does nothing if the run has none.
func (c *deviceClaims) drop(at kernel.PCIAddress, by *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[at] == by {
		delete(c.held, at)
	}
}

func claimOf(at kernel.PCIAddress) string    { return "claim of host device " + at.String() }
func deviceHold(at kernel.PCIAddress) string { return "host device " + at.String() }

// claimDevice claims a PCI device for a run. The release drops the claim.
func (r *Registry) claimDevice(at kernel.PCIAddress, by *run) (release func(context.Context) error, err error) {
	if err := r.devices.take(at, by); err != nil {
		return nil, err
	}
	return func(context.Context) error { r.devices.drop(at, by); return nil }, nil
}

// holdClaim claims a PCI device until the run has ended.
func (r *Registry) holdClaim(run *run, at kernel.PCIAddress) error {
	release, err := r.claimDevice(at, run)
	if err == nil {
		run.hold(claimOf(at), release)
	}
	return err
}

// dropClaimAt drops the claim on a PCI device that the guest no longer has. It runs in the loop.
func (r *run) dropClaimAt(at kernel.PCIAddress) {
	if r.noticed { // the end of the run drops it
		return
	}
	if drop := r.takeRelease(claimOf(at)); drop != nil {
		_ = drop(context.Background()) // it never fails
	}
}

// holdDevice pushes the release that returns a device to the host's driver.
func (r *Registry) holdDevice(run *run, at kernel.PCIAddress) {
	run.hold(deviceHold(at), r.returning(run, at))
}

// returning returns a device to the host's driver, unless another run has claimed it: a late attempt no
// longer has a claim.
func (r *Registry) returning(run *run, at kernel.PCIAddress) func(context.Context) error {
	return func(ctx context.Context) error {
		if !r.devices.has(at, run) {
			if r.devices.take(at, run) != nil {
				return nil
			}
			defer r.devices.drop(at, run)
		}
		return r.Kernel.ReturnPCI(ctx, at)
	}
}

// reholdClaims claims the devices of an adopted guest.
func (r *Registry) reholdClaims(run *run) {
	for _, d := range run.def.Devices.HostDevices {
		if d.Type != "pci" {
			continue
		}
		if err := r.holdClaim(run, hostAddress(d)); err != nil {
			run.log.Error("cannot claim a device of an adopted guest", "error", err)
		}
	}
}

// pciFunction returns the host address of a PCI device. Nil: the device is not one.
func pciFunction(dev device.Device) *kernel.PCIAddress {
	d, is := dev.(*device.HostDevice)
	if !is || d.Type != "pci" {
		return nil
	}
	at := hostAddress(d)
	return &at
}
