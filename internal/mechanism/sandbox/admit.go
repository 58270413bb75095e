package sandbox

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
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
	if err == nil && c.Terminals {
		var all piece
		if all, err = takeTerminals(); err == nil {
			pieces = append(pieces, all)
		}
	}
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "cannot furnish a chamber")
	}
	err = visit(pid, func() error { return c.bring(pieces) })
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot bring anything into the chamber of process %d", pid)
}

// EndTerminals lets a process make no more pseudo-terminals, of which the host has a few
// thousand for everybody. What it has stays, and Admit may let it make others.
func EndTerminals(pid int) error {
	err := visit(pid, func() error {
		if err := unix.Unlink(room + ptmx); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	})
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot keep terminals from process %d", pid)
}

// visit has a thread do something in the mount namespace of a process, whose root is that
// of the mould that its chamber was made from.
func visit(pid int, do func() error) error {
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer func() { _ = space.Close() }()
	return apart(func() (<-chan struct{}, error) {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return nil, err
		}
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNS); err != nil {
			return nil, err
		}
		return nil, do()
	})
}

// terminals is where the host's pseudo-terminals are.
const terminals = "/dev/pts"

// takeTerminals picks up the host's pseudo-terminals.
func takeTerminals() (piece, error) {
	f, err := os.OpenFile(terminals, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return piece{tree: -1}, err
	}
	defer func() { _ = f.Close() }()
	return detach(f, terminals)
}

// bring places what was picked up.
func (c *Chamber) bring(pieces []piece) error {
	unix.Umask(0)
	for _, p := range pieces {
		if there(p.at) {
			continue
		}
		if err := p.put(room); err != nil {
			return fmt.Errorf("cannot show %s: %w", p.at, err)
		}
		if p.at == terminals {
			if err := hideMaker(room); err != nil {
				return err
			}
		}
	}
	if c.Terminals && !there(ptmx) {
		if err := makePtmx(room); err != nil {
			return err
		}
	}
	for _, d := range c.Devices {
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
