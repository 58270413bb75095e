package sandbox

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Run calls start on a thread that is in a chamber: what start forks is in it too,
// provided that it takes the user, and is bounded by the chamber's limits. Where
// start gives a channel the thread, whose end the kernel may be asked to tell to
// what was started, stays until it is closed.
func (b *Builder) Run(spec *Spec, start func() (pid int, stay <-chan struct{}, err error)) error {
	mounts, err := spec.prepareMounts()
	defer closeMounts(mounts)
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "cannot furnish a chamber")
	}
	failpoint.Reach("sandbox.mounts") // within, a test could not command a point
	return onOwnThread(func() (<-chan struct{}, error) {
		if err := b.enter(spec, mounts); err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make a chamber")
		}
		pid, stay, err := start()
		if err != nil {
			return nil, err
		}
		if err := spec.Limits.apply(pid, spec.User); err != nil {
			_ = unix.Kill(pid, unix.SIGKILL) // not waited for yet, so the number is still this child's
			_, _ = unix.Wait4(pid, nil, 0, nil)
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot bound process %d", pid)
		}
		return stay, nil
	})
}

// enter takes the thread into a chamber. There is no way back.
func (b *Builder) enter(spec *Spec, mounts []mount) error {
	spaces := unix.CLONE_NEWNS | b.namespaces
	if spec.HostNetwork {
		spaces &^= unix.CLONE_NEWNET
	}
	if err := spec.Label.setExecLabel(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // a root of its own, and an umask
		return fmt.Errorf("cannot part from the daemon's root: %w", err)
	}
	if err := unix.Setns(int(b.template.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot enter the mould: %w", err)
	}
	if err := unix.Unshare(spaces); err != nil {
		return fmt.Errorf("cannot make its namespaces: %w", err)
	}
	umask := unix.Umask(0)
	if err := spec.buildRoot(mounts); err != nil {
		return err
	}
	for _, d := range spec.Devices {
		if err := d.make(rootfs, spec.User); err != nil {
			return err
		}
	}
	if err := labelTree(rootfs, spec.Label.Files); err != nil {
		return err
	}
	unix.Umask(umask)
	if len(spec.Capabilities) > 0 {
		if err := unix.Mount("", rootfs, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("cannot forbid to write to its root: %w", err)
		}
	}
	if err := unix.Chroot(rootfs); err != nil {
		return fmt.Errorf("cannot close the door: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if b.coreScheduling {
		if err := setSchedCookie(); err != nil {
			return fmt.Errorf("cannot keep it from sharing a core: %w", err)
		}
	}
	if err := spec.Limits.setPriority(); err != nil {
		return err
	}
	if err := dropPrivileges(spec.Capabilities); err != nil || !b.hasSeccomp {
		return err
	}
	if err := installSeccomp(spec.AllowIOUring); err != nil {
		return fmt.Errorf("cannot keep calls of the kernel's from it: %w", err)
	}
	return nil
}

// dropPrivileges sees to it that nothing started here ever has more privileges than it
// begins with, and none but those that are to be kept.
func dropPrivileges(keep []uintptr) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot forgo new privileges: %w", err)
	}
	for capability := range uintptr(64) {
		if slices.Contains(keep, capability) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err == unix.EINVAL {
			return nil // the kernel has no more
		} else if err != nil {
			return fmt.Errorf("cannot give up capability %d: %w", capability, err)
		}
	}
	return nil
}
