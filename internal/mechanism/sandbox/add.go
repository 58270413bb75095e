package sandbox

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// AddTo brings files, devices and terminals into the chamber of a process that
// runs, for its user. What is there already stays.
func (spec *Spec) AddTo(pid int) error {
	if len(spec.ReadOnlyFiles)+len(spec.Devices) == 0 && !spec.Terminals {
		return nil
	}
	spec.WritableDirs = nil // it has them
	mounts, err := spec.prepareMounts()
	defer closeMounts(mounts)
	if err == nil && spec.Terminals {
		var all mount
		if all, err = prepareTerminals(); err == nil {
			mounts = append(mounts, all)
		}
	}
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "cannot furnish a chamber")
	}
	err = inMountNamespace(pid, func() error { return spec.attachAll(mounts) })
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot bring anything into the chamber of process %d", pid)
}

// RevokeTerminals lets a process make no more pseudo-terminals, of which the host has a few
// thousand for everybody. What it has stays, and Admit may let it make others.
func RevokeTerminals(pid int) error {
	err := inMountNamespace(pid, func() error {
		if err := unix.Unlink(rootfs + ptmx); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	})
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot keep terminals from process %d", pid)
}

// inMountNamespace has a thread do something in the mount namespace of a process, whose root is that
// of the mould that its chamber was made from.
func inMountNamespace(pid int, do func() error) error {
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer func() { _ = space.Close() }()
	return onOwnThread(func() (<-chan struct{}, error) {
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

// prepareTerminals picks up the host's pseudo-terminals.
func prepareTerminals() (mount, error) {
	f, err := os.OpenFile(terminals, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return mount{fd: -1}, err
	}
	defer func() { _ = f.Close() }()
	return cloneMount(f, terminals)
}

// attachAll places what was picked up.
func (spec *Spec) attachAll(mounts []mount) error {
	unix.Umask(0)
	for _, p := range mounts {
		if exists(p.target) {
			continue
		}
		if err := p.attach(rootfs); err != nil {
			return fmt.Errorf("cannot show %s: %w", p.target, err)
		}
		if p.target == terminals {
			if err := hidePtsPtmx(rootfs); err != nil {
				return err
			}
		}
	}
	if spec.Terminals && !exists(ptmx) {
		if err := makePtmx(rootfs); err != nil {
			return err
		}
	}
	for _, d := range spec.Devices {
		if err := d.make(rootfs, spec.User); err != nil {
			return err
		}
	}
	return labelTree(rootfs, spec.Label.Files)
}

// exists reports whether something is in the chamber already. Nothing in it but
// what lies in directories of its own is the program's to change.
func exists(at string) bool {
	_, err := os.Lstat(rootfs + at)
	return err == nil
}
