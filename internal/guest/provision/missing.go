package provision

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// Absence is the reason why something that a device needs is missing. A start may continue without it.
type Absence struct{ cause error }

func (a *Absence) Error() string { return a.cause.Error() }

func (a *Absence) Unwrap() error { return a.cause }

// asAbsence turns the failure to find something into an absence. Something that exists but is unusable, such
// as a damaged image, is not absent: its guest must not run without its data.
func asAbsence(err error) error {
	inactivePool := fault.Is(err, fault.WrongState) && fault.About(err) == fault.Pool
	if fault.Is(err, fault.NotFound) || inactivePool || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return &Absence{err}
	}
	return err
}

// IsDrive reports whether a disk is a drive with a removable medium.
func IsDrive(d *device.Disk) bool { return d.Device == "cdrom" || d.Device == "floppy" }

// These are the reasons for a changed disk source, as events name them.
const (
	DroppedMedium = "missing on start"
	DroppedDisk   = "drop missing on start"
)
