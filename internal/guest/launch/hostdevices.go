package launch

import (
	"context"
	"errors"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
)

// CheckHostDevices refuses, before anything is made, host devices that QEMU could not use or that another
// guest has. It lists in Taken the devices to take from their drivers.
func (l *Launch) CheckHostDevices(context.Context) error {
	devices := slices.Clone(l.Instance.Definition.Devices.HostDevices)
	for _, d := range devices {
		if at := hotplug.PCIFunction(d); at != nil {
			if err := hotplug.ClaimUntilEnd(l.Guest.Reg, l.Instance, *at); err != nil {
				return err
			}
		}
		taken, err := provision.CheckHostDevice(l.Guest.Reg, l.Instance.UUID, d, devices)
		if missing := (*provision.Absence)(nil); errors.As(err, &missing) && l.mayStartWithout(d.StartupPolicy, true) {
			l.Instance.Definition.Devices.Remove(d)
			l.Instance.Log.Warn("USB device missing; guest starts without it", "cause", err)
			continue
		}
		if err != nil {
			return err
		}
		if taken {
			l.Instance.Taken = append(l.Instance.Taken, provision.HostAddress(d))
		}
	}
	return nil
}

// takeHostDevices takes the devices in the record's Taken from their drivers.
func (l *Launch) takeHostDevices(ctx context.Context) error {
	for _, at := range l.Instance.Taken {
		hotplug.ReturnAtEnd(l.Guest.Reg, l.Instance, at)
		if err := l.Guest.Reg.Kernel.TakePCI(ctx, at); err != nil {
			return err
		}
		failpoint.Reach("launch.device")
	}
	return nil
}
