package volume

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A record that says of a file that it was being made, or being made anew without its data, has the
// next daemon remove it or its data. The record alone is not believed: an earlier store that takes the
// place of the present one, by a backup or a snapshot, says so of what was completed since, and the
// number of a file that is gone is soon another's. So the file says it too.

// halfMarks are the attributes in which it does: the first that the file system has.
var halfMarks = []string{"trusted.lodge.half", "user.lodge.half"}

// markHalf has a file say that it is not complete. One that cannot, for want of such attributes or of
// room for one, is believed to be what its record says.
func markHalf(f *os.File) (marked bool) {
	for _, mark := range halfMarks {
		if unix.Fsetxattr(int(f.Fd()), mark, nil, 0) == nil {
			return true
		}
	}
	return false
}

// isHalf says whether a file says so.
func isHalf(target, name string) (bool, error) {
	f, err := openFile(target, name, unix.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for _, mark := range halfMarks {
		_, err := unix.Fgetxattr(int(f.Fd()), mark, nil)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return false, fault.Wrap(err, fault.Failed, fault.Volume, "cannot tell whether %s is complete", f.Name())
		}
	}
	return false, nil
}

// unmarkHalf takes that back once its record says that it is complete, which is what counts.
func unmarkHalf(target, name string) {
	f, err := openFile(target, name, unix.O_RDONLY)
	if err != nil {
		return
	}
	defer f.Close()
	for _, mark := range halfMarks {
		_ = unix.Fremovexattr(int(f.Fd()), mark) // one of them
	}
}

// outdated says whether a record is of what its file was once, and is no more.
func (d *declaration) outdated(target, name string) (bool, error) {
	if !d.Marked {
		return false, nil
	}
	half, err := isHalf(target, name)
	if fault.Is(err, fault.NotFound) {
		return false, nil // there is nothing to lose
	}
	return err == nil && !half, err
}
