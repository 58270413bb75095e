package chamber

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/fault"
)

// Admit brings files, devices and terminals into the chamber of a process that
// runs, for its user. What is there already stays.
func (c *Chamber) Admit(pid int) error {
	if len(c.Shown)+len(c.Devices) == 0 && !c.Terminals {
		return nil
	}
	c.Own = nil // it has them
	pieces, err := c.take()
	defer drop(pieces)
	var devices []device
	if err == nil {
		devices, err = c.devices()
	}
	if err == nil && c.Terminals {
		var terminals piece
		if terminals, err = takeTerminals(); err == nil {
			pieces = append(pieces, terminals)
		}
	}
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "cannot furnish a chamber")
	}
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot find the chamber of process %d", pid)
	}
	defer func() { _ = space.Close() }()
	err = apart(func() (<-chan struct{}, error) { return nil, c.bring(space, pieces, devices) })
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot bring anything into the chamber of process %d", pid)
}

// takeTerminals picks up the host's pseudo-terminals.
func takeTerminals() (piece, error) {
	f, err := os.OpenFile("/dev/pts", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return piece{tree: -1}, err
	}
	defer func() { _ = f.Close() }()
	return detach(f, "/dev/pts")
}

// bring takes the thread into a mount namespace, whose root is that of the mould
// that the chamber was made from, and places there what was picked up.
func (c *Chamber) bring(space *os.File, pieces []piece, devices []device) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNS); err != nil {
		return err
	}
	unix.Umask(0)
	for _, p := range pieces {
		if there(p.at) {
			continue
		}
		if err := p.put(room); err != nil {
			return fmt.Errorf("cannot show %s: %w", p.at, err)
		}
	}
	if c.Terminals && !there("/dev/ptmx") {
		if err := unix.Mknod(room+"/dev/ptmx", unix.S_IFCHR|0o666, int(unix.Mkdev(5, 2))); err != nil {
			return err
		}
	}
	for _, d := range devices {
		if err := d.make(room, c.User); err != nil {
			return err
		}
	}
	return labelTree(room, c.Label.Files)
}

// there reports whether something is in the chamber already. Nothing in it but
// what lies in directories of its own is the program's to change.
func there(at string) bool {
	_, err := os.Lstat(room + at)
	return err == nil
}
