package launch

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

// When QEMU has made its machine, and before the guest's first instruction, the guest's own directory is
// taken from its user. A QEMU that is compromised later can still use the files there. It cannot create,
// rename or remove anything, which could fill the host's /run. Files that are needed there afterwards the
// daemon makes and passes on. QEMU cannot open terminals of the host any more either, because there are few
// of them.

const (
	// The group is the user's own: it can use files by name, but not list them.
	sealedDirectory = 0o710
	sealedFile      = 0o640
	// maxOwn bounds the number of entries in a guest's own directory when it is sealed: a few sockets, and
	// the files of a TPM emulator.
	maxOwn = 1024
)

// Seal takes the guest's own directory, and the files in it, from the guest's user. Repeating it changes
// nothing.
func Seal(r *machine.Instance) error {
	if r.User == nil {
		return nil
	}
	own, err := os.OpenFile(provision.OwnPath(r), unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err == nil {
		left := maxOwn
		err = errors.Join(sealTree(own, int(r.User.GID), &left), own.Close())
	}
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot take the guest's own directory from its QEMU")
	}
	return sandbox.RevokeTerminals(r.PID)
}

// sealOwn seals the directory during a start. If the daemon is killed after this, the next one finds QEMU
// by the run record.
func (l *Launch) sealOwn(context.Context) error {
	if err := Seal(l.Instance); err != nil {
		return err
	}
	failpoint.Reach("launch.sealed")
	return nil
}

// sealTree seals a directory before it reads it: after that no entry can be replaced.
func sealTree(dir *os.File, group int, left *int) error {
	// The owner could change the mode back, so the owner is changed first.
	err := dir.Chown(0, group)
	if err == nil {
		err = dir.Chmod(sealedDirectory)
	}
	if err != nil {
		return err
	}
	entries, err := dir.ReadDir(*left + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if *left -= len(entries); *left < 0 {
		return fault.New(fault.Failed, fault.Host, "it holds more than the %d files that a QEMU may make", maxOwn)
	}
	for _, e := range entries {
		switch at := int(dir.Fd()); {
		case e.IsDir():
			err = sealBelow(at, e.Name(), group, left)
		case e.Type().IsRegular():
			err = unix.Fchownat(at, e.Name(), 0, group, unix.AT_SYMLINK_NOFOLLOW)
			if err == nil {
				err = unix.Fchmodat(at, e.Name(), sealedFile, 0)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sealBelow seals a directory in an open directory.
func sealBelow(at int, name string, group int, left *int) error {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	return errors.Join(sealTree(dir, group, left), dir.Close())
}
