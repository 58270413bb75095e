package sandbox

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// AddTo makes the read-only files, devices and pseudo-terminals of the specification visible in the
// sandbox of a running process. Paths that exist there already stay as they are.
func (spec *Spec) AddTo(pid int) error {
	if len(spec.ReadOnlyFiles)+len(spec.Devices) == 0 && !spec.Terminals {
		return nil
	}
	spec.WritableDirs = nil // the sandbox has them since its start
	mounts, err := spec.prepareMounts()
	defer closeMounts(mounts)
	if err == nil && spec.Terminals {
		var all mount
		if all, err = prepareTerminals(); err == nil {
			mounts = append(mounts, all)
		}
	}
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "cannot prepare the mounts of a sandbox")
	}
	err = inMountNamespace(pid, func() error { return spec.attachAll(mounts) })
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot add files to the sandbox of process %d", pid)
}

// RevokeTerminals prevents a process from making more pseudo-terminals: the host has a few thousand for
// all programs. Those that are open stay open, and AddTo can permit new ones again.
func RevokeTerminals(pid int) error {
	err := inMountNamespace(pid, func() error {
		if err := unix.Unlink(rootfs + ptmx); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	})
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot prevent process %d from making pseudo-terminals", pid)
}

// inMountNamespace runs do on a thread in the mount namespace of a process. The root directory of that
// thread is the template that the sandbox was copied from.
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

// terminals is the host's directory of pseudo-terminals.
const terminals = "/dev/pts"

// prepareTerminals clones the mount of the host's pseudo-terminals.
func prepareTerminals() (mount, error) {
	f, err := os.OpenFile(terminals, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return mount{fd: -1}, err
	}
	defer func() { _ = f.Close() }()
	return cloneMount(f, terminals)
}

// attachAll attaches the prepared mounts in the sandbox of a running process and makes its devices. The
// thread is in the mount namespace of the process.
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

// exists reports whether a path exists in the sandbox. The program can change only what lies in its
// writable directories.
func exists(at string) bool {
	_, err := os.Lstat(rootfs + at)
	return err == nil
}
