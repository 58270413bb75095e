package volume

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A record of a file that was being made, or being wiped, makes the next daemon remove the file or its data.
// The record alone is not sufficient. An older store, restored from a backup or a snapshot, has such records
// of files that were completed since, and inode numbers are reused. So the file is marked too.

// incompleteMarks are the attributes for the mark: the first one that the file system supports is used.
var incompleteMarks = []string{"trusted.lodge.half", "user.lodge.half"}

// markIncomplete marks a file as incomplete. If the file system has no such attributes, or no room for one, the
// record alone decides.
func markIncomplete(f *os.File) (marked bool) {
	for _, mark := range incompleteMarks {
		if unix.Fsetxattr(int(f.Fd()), mark, nil, 0) == nil {
			return true
		}
	}
	return false
}

// isIncomplete says whether a file is marked as incomplete.
func isIncomplete(target, name string) (bool, error) {
	f, err := openFile(target, name, unix.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for _, mark := range incompleteMarks {
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

// unmarkIncomplete removes the mark after the record says that the file is complete. The record is what counts.
func unmarkIncomplete(target, name string) {
	f, err := openFile(target, name, unix.O_RDONLY)
	if err != nil {
		return
	}
	defer f.Close()
	for _, mark := range incompleteMarks {
		_ = unix.Fremovexattr(int(f.Fd()), mark) // only one of them exists
	}
}

// outdated says whether a record describes an earlier state of its file.
func (d *declaration) outdated(target, name string) (bool, error) {
	if !d.Marked {
		return false, nil
	}
	half, err := isIncomplete(target, name)
	if fault.Is(err, fault.NotFound) {
		return false, nil // there is no data to lose
	}
	return err == nil && !half, err
}
