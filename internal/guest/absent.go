package guest

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// absence is why something that a device is made of is not there. A start may go on without it.
type absence struct{ cause error }

func (a *absence) Error() string { return a.cause.Error() }
func (a *absence) Unwrap() error { return a.cause }

// absent makes a failure to find something an absence. What is there and cannot be used, as a damaged
// image, is not absent: its guest must not run without its data.
func absent(err error) error {
	inactivePool := fault.Is(err, fault.WrongState) && fault.About(err) == fault.Pool
	if fault.Is(err, fault.NotFound) || inactivePool || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return &absence{err}
	}
	return err
}

// mayLack reports whether a start may go on without what a device of a startup policy is made of. A
// guest that goes on from an image has the device in that image, so it keeps a disk or fails.
func (l *launching) mayLack(policy string, removable bool) bool {
	booted := l.from == nil
	return policy == "optional" && (booted || removable) || policy == "requisite" && !booted && removable
}

func isDrive(d *device.Disk) bool { return d.Device == "cdrom" || d.Device == "floppy" }

// Why a disk's source changed, as events say it.
const (
	droppedMedium = "missing on start"
	droppedDisk   = "drop missing on start"
)

// dropDisk has the guest start without a disk, or with an empty drive.
func (l *launching) dropDisk(d *device.Disk, why error) {
	change := event.DomainMediaChange{OldPath: d.Source.Path(), Alias: d.Alias, Reason: droppedDisk}
	if isDrive(d) {
		change.Reason = droppedMedium
		d.Source, d.StartupPolicy = nil, "" // the policy is not for the next medium
	} else {
		l.run.def.Devices.Remove(d)
	}
	l.run.dropped = append(l.run.dropped, change)
	l.run.log.Warn("a guest starts without the source of a disk", "disk", d.Target, "cause", why)
}
