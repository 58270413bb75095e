package kernel

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/fault"
)

// VFIODriver is the kernel's driver by which guests have PCI devices.
const VFIODriver = "vfio-pci"

// TakePCI takes a PCI function from the driver that the host runs it with, and
// binds it to vfio-pci. It is given back as it was when that fails.
func (r Root) TakePCI(ctx context.Context, address PCIAddress) error {
	return finished(ctx, func() error {
		if err := r.loadVFIO(ctx); err != nil {
			return err
		}
		err := r.rebind(address, VFIODriver)
		if err == nil && r.link(pciDir, address.String(), "driver") != VFIODriver {
			err = errors.New("the kernel does not bind it to " + VFIODriver)
		}
		if err != nil {
			err = errors.Join(err, r.rebind(address, ""))
		}
		return fault.Wrap(err, fault.Failed, fault.NodeDevice, "cannot take PCI device %s from its driver", address)
	})
}

// ReturnPCI gives a PCI function that is bound to vfio-pci back to the driver that
// the kernel has for it. One that another driver has stays with that, and one that
// is gone is fine.
func (r Root) ReturnPCI(ctx context.Context, address PCIAddress) error {
	return finished(ctx, func() error {
		device, there := r.PCIDevice(address)
		if !there || device.Driver != VFIODriver && device.Driver != "" {
			return nil
		}
		return fault.Wrap(r.rebind(address, ""), fault.Failed, fault.NodeDevice, "cannot give PCI device %s back to its driver", address)
	})
}

// finished does something by which the kernel may hang: a driver that does not let
// go of its device. It is waited for until ctx ends.
func finished(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fault.Wrap(context.Cause(ctx), fault.Timeout, fault.Host, "the kernel has not changed the driver of a PCI device yet")
	}
}

const pciDrivers = "sys/bus/pci/drivers"

// loadVFIO loads the driver, unless it is there.
func (r Root) loadVFIO(ctx context.Context) error {
	if r.list(pciDrivers, VFIODriver) != nil {
		return nil
	}
	if said, err := exec.CommandContext(ctx, "modprobe", VFIODriver).CombinedOutput(); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot load the kernel's driver %s: %s", VFIODriver, strings.TrimSpace(string(said)))
	}
	return nil
}

// rebind has a function leave its driver, and the kernel look for one anew: this
// one, or for "" the one that it finds by itself.
func (r Root) rebind(address PCIAddress, driver string) error {
	dir := path.Join(pciDir, address.String())
	if err := r.tell(driver+"\n", dir, "driver_override"); err != nil {
		return err
	}
	// The driver may have let go by itself.
	if err := r.tell(address.String(), dir, "driver/unbind"); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	err := r.tell(address.String(), "sys/bus/pci/drivers_probe")
	if driver == "" && errors.Is(err, unix.EINVAL) { // there is no driver for it
		return nil
	}
	return err
}

func (r Root) tell(value string, elem ...string) error {
	return writeKnob(r.path(elem[:len(elem)-1]...), elem[len(elem)-1], value)
}
