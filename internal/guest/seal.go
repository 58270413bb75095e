package guest

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

// When QEMU has made its machine, and before the guest's first instruction, the guest's
// own directory is taken from its user: a QEMU that its guest takes over later finds
// what lies there, and can neither make, rename nor remove anything, or it could fill
// the host's /run. What is made there, or would be, after that is made by the daemon
// and handed over. Nor does it take terminals of the host any more, of which there are few.

const (
	// The group is the user's own: it reaches what it knows by name.
	sealedDirectory = 0o710
	sealedFile      = 0o640
	// maxOwn bounds what a guest's own directory holds when it is sealed: a few sockets,
	// and what a TPM's emulator writes.
	maxOwn = 1024
)

// seal takes the guest's own directory, and what lies in it, from the guest's user. To
// seal what is sealed changes nothing.
func (r *run) seal() error {
	if r.User == nil {
		return nil
	}
	own, err := os.OpenFile(r.ownPath(), unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err == nil {
		left := maxOwn
		err = errors.Join(sealTree(own, int(r.User.GID), &left), own.Close())
	}
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot take the guest's own directory from its QEMU")
	}
	return sandbox.RevokeTerminals(r.PID)
}

// endTerminals is seal after a device was plugged, which may have been given a terminal.
func (g *Guest) endTerminals(r *run) {
	if r.User == nil {
		return
	}
	if err := sandbox.RevokeTerminals(r.PID); err != nil {
		g.log.Warn("a guest may take more of the host's terminals", "error", err)
	}
}

// sealOwn is seal in a start. A daemon that is killed after it finds QEMU by the run
// record.
func (l *launching) sealOwn(context.Context) error {
	if err := l.run.seal(); err != nil {
		return err
	}
	failpoint.Reach("launch.sealed")
	return nil
}

// sealTree seals a directory before it looks what lies there: nothing in it is replaced
// any more then.
func sealTree(dir *os.File, group int, left *int) error {
	// Its owner could change the mode back, and so goes first.
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
		return fault.New(fault.Failed, fault.Host, "more lies there than the %d files that a QEMU may have made", maxOwn)
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

func sealBelow(at int, name string, group int, left *int) error {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	return errors.Join(sealTree(dir, group, left), dir.Close())
}
