package launch

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// makeGroup makes the guest's control group and sets the limits of its definition.
func (l *Launch) makeGroup(ctx context.Context) error {
	group := l.Guest.Reg.Cgroups.Guest(l.Instance.UUID)
	run := l.Instance
	run.PushRelease("sockets", func(ctx context.Context) error { return provision.RemoveSockets(ctx, run) })
	run.PushRelease("control group", group.Clear) // it may have been made in part
	if err := group.Create(); err != nil {
		return err
	}
	if err := failpoint.Err("launch.group"); err != nil {
		return err
	}
	absent, err := group.Apply(provision.Limits(l.Instance.Definition))
	if err != nil {
		return err
	}
	provision.WarnAbsent(l.Instance, absent)
	return l.limitQEMU(ctx, group)
}

// limitQEMU limits the number of QEMU's threads, its huge pages and the devices it may open. On a host
// without the pids controller the process limit (RLIMIT_NPROC) of its user takes its place. On a host
// without the devices controller the sandbox does, which has no other device nodes.
func (l *Launch) limitQEMU(ctx context.Context, group *kernel.Group) error {
	if l.Instance.User == nil {
		return nil
	}
	most := provision.MaxThreads(l.Instance.Definition)
	if _, err := group.Apply(kernel.Limits{PIDs: &most}); err != nil {
		return err
	}
	if err := provision.BoundHugePages(l.Guest.Reg, l.Instance.UUID, l.Instance.Definition, nil); err != nil {
		return err
	}
	return provision.AllowDevices(ctx, l.Guest.Reg, l.Instance.UUID, l.Instance.Definition)
}

// joinGroup moves the new process into its group.
func (l *Launch) joinGroup(context.Context) error {
	if err := l.Guest.Reg.Cgroups.Guest(l.Instance.UUID).AddProcess(l.Instance.PID); err != nil {
		return err
	}
	failpoint.Reach("launch.joined")
	return nil
}
