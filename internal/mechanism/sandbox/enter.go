package sandbox

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Run calls start on a thread that is in a new sandbox. A process that start forks is in the sandbox too,
// if it runs as the specification's user; its limits are set as soon as start returns. If start returns a
// channel, the thread stays until the channel is closed: the kernel can be asked (PR_SET_PDEATHSIG) to
// kill a child when the thread that forked it ends.
func (b *Builder) Run(spec *Spec, start func() (pid int, stay <-chan struct{}, err error)) error {
	mounts, err := spec.prepareMounts()
	defer closeMounts(mounts)
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "cannot prepare the mounts of a sandbox")
	}
	failpoint.Reach("sandbox.mounts") // a test cannot reach a fail point on the sandbox's thread
	return onOwnThread(func() (<-chan struct{}, error) {
		if err := b.enter(spec, mounts); err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make a sandbox")
		}
		pid, stay, err := start()
		if err != nil {
			return nil, err
		}
		if err := spec.Limits.apply(pid, spec.User); err != nil {
			_ = unix.Kill(pid, unix.SIGKILL) // not waited for yet, so the number is still this child's
			_, _ = unix.Wait4(pid, nil, 0, nil)
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot limit process %d", pid)
		}
		return stay, nil
	})
}

// enter moves the calling thread into a new sandbox. The thread cannot leave it again and must end there.
// The order matters: the label is set while /proc is visible, mounts come before chroot, capabilities are
// dropped after chroot, and the seccomp filter comes last because it refuses calls that the steps before
// it need.
func (b *Builder) enter(spec *Spec, mounts []mount) error {
	spaces := unix.CLONE_NEWNS | b.namespaces
	if spec.HostNetwork {
		spaces &^= unix.CLONE_NEWNET
	}
	if err := spec.Label.setExecLabel(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // its own root directory and umask
		return fmt.Errorf("cannot leave the daemon's root directory: %w", err)
	}
	if err := unix.Setns(int(b.template.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot enter the template's mount namespace: %w", err)
	}
	if err := unix.Unshare(spaces); err != nil {
		return fmt.Errorf("cannot make namespaces: %w", err)
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
			return fmt.Errorf("cannot make the root read-only: %w", err)
		}
	}
	if err := unix.Chroot(rootfs); err != nil {
		return fmt.Errorf("cannot chroot: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if b.coreScheduling {
		if err := setSchedCookie(); err != nil {
			return fmt.Errorf("cannot set the core scheduling cookie: %w", err)
		}
	}
	if err := spec.Limits.setPriority(); err != nil {
		return err
	}
	if err := dropPrivileges(spec.Capabilities); err != nil || !b.hasSeccomp {
		return err
	}
	if err := installSeccomp(spec.AllowIOUring); err != nil {
		return fmt.Errorf("cannot install the seccomp filter: %w", err)
	}
	return nil
}

// dropPrivileges sets PR_SET_NO_NEW_PRIVS and drops all capabilities from the bounding set except those to
// keep: no program started here can have more privileges than the thread.
func dropPrivileges(keep []uintptr) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot set no_new_privs: %w", err)
	}
	for capability := range uintptr(64) {
		if slices.Contains(keep, capability) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err == unix.EINVAL {
			return nil // the kernel has no more
		} else if err != nil {
			return fmt.Errorf("cannot drop capability %d: %w", capability, err)
		}
	}
	return nil
}
