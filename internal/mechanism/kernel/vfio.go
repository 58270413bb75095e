package kernel

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// VFIODriver is the kernel's driver that gives PCI devices to guests.
const VFIODriver = "vfio-pci"

// TakePCI takes a PCI function from the driver that the host runs it with, and
// binds it to vfio-pci. It is given back when that fails, or when ctx ends first.
// A function that vfio-pci already has stays as it is.
func (r Root) TakePCI(ctx context.Context, address PCIAddress) error {
	bound := false
	take := func() error {
		if err := r.loadVFIO(ctx); err != nil {
			return err
		}
		driver := func() string { return r.link(pciDir, address.String(), "driver") }
		if driver() == VFIODriver {
			return nil
		}
		err := r.rebind(ctx, address, VFIODriver)
		if err == nil && driver() != VFIODriver {
			err = errors.New("the kernel does not bind it to " + VFIODriver)
		}
		if err != nil {
			err = errors.Join(err, r.rebind(context.WithoutCancel(ctx), address, ""))
		}
		bound = err == nil
		return fault.Wrap(err, fault.Failed, fault.NodeDevice, "cannot take PCI device %s from its driver", address)
	}
	return r.changeDriver(ctx, address, take, func() {
		if bound {
			_ = r.rebind(context.WithoutCancel(ctx), address, "") // the caller was told that it failed
		}
	})
}

// ReturnPCI gives a PCI function that is bound to vfio-pci back to the driver that
// the kernel has for it. One that another driver has stays with that, and one that
// is gone is fine.
func (r Root) ReturnPCI(ctx context.Context, address PCIAddress) error {
	return r.changeDriver(ctx, address, func() error {
		device, there := r.PCIDevice(address)
		if !there || device.Driver != VFIODriver && device.Driver != "" {
			return nil
		}
		err := r.rebind(context.WithoutCancel(ctx), address, "")
		return fault.Wrap(err, fault.Failed, fault.NodeDevice, "cannot give PCI device %s back to its driver", address)
	}, func() {})
}

// function is a PCI function of a host.
type function struct {
	root    Root
	address PCIAddress
}

// driverChanges holds each function with a change of driver in progress: one change at a time.
var driverChanges sync.Map

// changeDriver changes the driver of a function. A driver that does not let go can
// make the kernel hang: the change is waited for until ctx ends. It then goes on, and
// is undone when it is over. Until then the function is busy.
func (r Root) changeDriver(ctx context.Context, address PCIAddress, do func() error, undo func()) error {
	f := function{r, address}
	if _, busy := driverChanges.LoadOrStore(f, true); busy {
		return fault.New(fault.Busy, fault.NodeDevice, "the driver of PCI device %s is just being changed; try again when that is over", address)
	}
	done := make(chan error) // unbuffered: either the caller has the outcome, or it is undone
	go func() {
		err := do()
		select {
		case done <- err:
		case <-ctx.Done():
			undo()
			driverChanges.Delete(f)
		}
	}()
	select {
	case err := <-done:
		driverChanges.Delete(f)
		return err
	case <-ctx.Done():
		return fault.Wrap(context.Cause(ctx), fault.Timeout, fault.Host, "the kernel has not changed the driver of PCI device %s yet", address)
	}
}

const pciDrivers = "sys/bus/pci/drivers"

// loadVFIO loads the driver, unless it is loaded.
func (r Root) loadVFIO(ctx context.Context) error {
	if r.list(pciDrivers, VFIODriver) != nil {
		return nil
	}
	if said, err := exec.CommandContext(ctx, "modprobe", VFIODriver).CombinedOutput(); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot load the kernel's driver %s: %s", VFIODriver, strings.TrimSpace(string(said)))
	}
	return nil
}

// rebind unbinds a function from its driver and makes the kernel look for another:
// this one, or for "" the one that the kernel chooses. If ctx ends meanwhile, the
// function is left without a driver.
func (r Root) rebind(ctx context.Context, address PCIAddress, driver string) error {
	dir := path.Join(pciDir, address.String())
	if err := r.tell(driver+"\n", dir, "driver_override"); err != nil {
		return err
	}
	// The driver may have unbound itself already.
	if err := r.tell(address.String(), dir, "driver/unbind"); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := r.tell(address.String(), "sys/bus/pci/drivers_probe")
	if driver == "" && errors.Is(err, unix.EINVAL) { // there is no driver for it
		return nil
	}
	return err
}

func (r Root) tell(value string, elem ...string) error {
	return writeControl(r.path(elem[:len(elem)-1]...), elem[len(elem)-1], value)
}
