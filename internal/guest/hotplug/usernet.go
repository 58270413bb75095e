package hotplug

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// serveUserNetwork starts the program that serves a NIC which is being attached. It journals this first,
// because the next daemon may have to end the program.
func serveUserNetwork(ctx context.Context, r *machine.Registry, sc scope.Scope, a *AttachOp, n *device.NIC) error {
	run, p := a.R, a.Plan
	user, err := r.Isolation.Users.Take(run.UUID)
	if err != nil {
		return err
	}
	a.NIC = &machine.HeldNIC{Alias: n.Alias, User: &user}
	serving, end := context.WithCancelCause(r.Life)
	a.what, a.release = a.NIC.ReleaseName(), func(context.Context) error {
		end(nil)
		return r.Isolation.Users.Free(user)
	}
	if err := a.op.Save(); err != nil {
		return err
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot make a socket pair for interface %s", n.MAC)
	}
	near, far := os.NewFile(uintptr(ends[0]), "wire"), os.NewFile(uintptr(ends[1]), "wire")
	defer far.Close()
	p.NICs[n.Alias] = &device.NICAttachment{Wire: near}
	process, err := provision.LaunchUserNetwork(ctx, r, sc, run, p.Definition.Devices.Emulator, user, far)
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "cannot serve interface %s of type user", n.MAC)
	}
	log := run.Log.With("interface", n.MAC)
	r.Loops.Go(func() { provision.WatchUserNetwork(serving, r, process, log) })
	provision.SetOOMScore(r, run.Name, process.PID, provision.OOMScore(0))
	if err := r.Cgroups.Guest(run.UUID).AddProcess(process.PID); err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "cannot serve interface %s of type user", n.MAC)
	}
	return nil
}
