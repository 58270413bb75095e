package guest

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// absence is the reason why something that a device needs is missing. A start may continue without it.
type absence struct{ cause error }

func (a *absence) Error() string { return a.cause.Error() }
func (a *absence) Unwrap() error { return a.cause }

// absent turns the failure to find something into an absence. Something that exists but is unusable, such
// as a damaged image, is not absent: its guest must not run without its data.
func absent(err error) error {
	inactivePool := fault.Is(err, fault.WrongState) && fault.About(err) == fault.Pool
	if fault.Is(err, fault.NotFound) || inactivePool || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return &absence{err}
	}
	return err
}

// mayLack reports whether a start may continue without the source of a device with that startup policy. A
// guest restored from an image has the device in its state, so it must find a disk, or else the start
// fails.
func (l *launching) mayLack(policy string, removable bool) bool {
	booted := l.from == nil
	return policy == "optional" && (booted || removable) || policy == "requisite" && !booted && removable
}

// isDrive reports whether a disk is a drive with a removable medium.
func isDrive(d *device.Disk) bool { return d.Device == "cdrom" || d.Device == "floppy" }

// These are the reasons for a changed disk source, as events name them.
const (
	droppedMedium = "missing on start"
	droppedDisk   = "drop missing on start"
)

// dropDisk lets the guest start without a disk, or with an empty drive.
func (l *launching) dropDisk(d *device.Disk, why error) {
	change := event.DomainMediaChange{OldPath: d.Source.Path(), Alias: d.Alias, Reason: droppedDisk}
	if isDrive(d) {
		change.Reason = droppedMedium
		d.Source, d.StartupPolicy = nil, "" // the policy does not apply to the next medium
	} else {
		l.run.def.Devices.Remove(d)
	}
	l.run.dropped = append(l.run.dropped, change)
	l.run.log.Warn("disk source missing; guest starts without it", "disk", d.Target, "cause", why)
}
