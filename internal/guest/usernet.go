package guest

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// QEMU serves an interface of type user through the host's network. A guest's QEMU runs in that network
// only if the guest needed it at its start, and cannot be moved there later. So an interface that is
// attached to another guest is served by a second QEMU without a guest, which runs in the host's network as
// a user of its own. A socket connects the two.

// lacksNetwork reports whether a guest's QEMU cannot reach the host's network.
func (r *Registry) lacksNetwork(run *run) bool {
	return run.User != nil && !r.Kernel.SharesNetwork(run.PID)
}

// serveUserNetwork starts the program that serves a NIC which is being attached. It journals this first,
// because the next daemon may have to end the program.
func (r *Registry) serveUserNetwork(ctx context.Context, sc scope.Scope, a *attach, n *device.NIC) error {
	run, p := a.r, a.plan
	user, err := r.Quarters.Users.Take(run.UUID)
	if err != nil {
		return err
	}
	a.NIC = &heldNIC{Alias: n.Alias, User: &user}
	serving, end := context.WithCancelCause(r.life)
	a.what, a.release = a.NIC.what(), func(context.Context) error {
		end(nil)
		return r.Quarters.Users.Free(user)
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
	process, err := r.launchUserNetwork(ctx, sc, run, p.Definition.Devices.Emulator, user, far)
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "cannot serve interface %s of type user", n.MAC)
	}
	log := run.log.With("interface", n.MAC)
	r.loops.Go(func() { r.watchUserNetwork(serving, process, log) })
	r.makeVictim(run.Name, process.PID, victim(0))
	if err := r.Cgroups.Guest(run.UUID).AddProcess(process.PID); err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "cannot serve interface %s of type user", n.MAC)
	}
	return nil
}

// The limits of the program. It needs a few threads, and a file for each connection of the guest.
const userNetworkThreads, userNetworkFiles = 16, 4096

// launchUserNetwork launches the program.
func (r *Registry) launchUserNetwork(ctx context.Context, sc scope.Scope, run *run, emulator string, user sandbox.User, wire *os.File) (*qemuprocess.Process, error) {
	args := qemu.UserNetwork()
	log, err := r.openLog(run.Name, "serving a user network", emulator, &qemu.Command{Args: args})
	if err != nil {
		return nil, err
	}
	defer log.Close()
	place := &sandbox.Spec{
		User: user, Program: emulator, HostNetwork: true, Label: run.labels.helper(),
		Limits: sandbox.Limits{Threads: userNetworkThreads, Open: userNetworkFiles},
	}
	defer closeShown(place)
	for _, path := range namesOfHosts {
		f, err := openToShow(ctx, sc, path)
		if err == nil {
			place.ReadOnlyFiles = append(place.ReadOnlyFiles, sandbox.ReadOnlyFile{Path: path, File: f})
		}
	}
	return qemuprocess.Launch(ctx, qemuprocess.Spec{
		Binary: emulator, Args: args, Env: environment("/"), Dir: "/", Files: []*os.File{wire}, Log: log, Builder: r.Quarters.Builder, Sandbox: place,
	})
}

// watchUserNetwork waits until the program or the daemon ends. It reports a program that ends while it is
// still needed: nothing else shows that the interface is dead.
func (r *Registry) watchUserNetwork(serving context.Context, process *qemuprocess.Process, log *slog.Logger) {
	select {
	case <-process.Exited():
		if serving.Err() == nil {
			log.Error("program of an interface of type user has ended; detach the interface and attach it again", "exit", process.Exit().String())
		}
	case <-r.life.Done():
		process.Release()
	}
}

// endUserNetwork returns the release that ends the program of an adopted guest's interface and frees its
// user, unless another guest has been given that user since.
func (r *Registry) endUserNetwork(user sandbox.User, guest string, log *slog.Logger) func(context.Context) error {
	if r.Quarters == nil { // the guest's control group ends it
		return func(context.Context) error { return nil }
	}
	if !r.Quarters.Users.Reserve(user, guest) {
		log.Error("user of an interface of type user now belongs to another guest; not freed", "user", user.UID)
		return func(context.Context) error { return nil }
	}
	return func(context.Context) error { return r.Quarters.Users.Free(user) }
}

// userNetworks returns the users of the programs that serve interfaces of type user for the guest of a run
// record.
func userNetworks(rec *runRecord, dir string) (users []sandbox.User) {
	add := func(n *heldNIC) {
		if n != nil && n.User != nil {
			users = append(users, *n.User)
		}
	}
	for i := range rec.NICs {
		add(&rec.NICs[i])
	}
	records, err := operation.Files{Dir: dir}.Read()
	if err != nil {
		return users // such a guest is not adopted
	}
	for _, r := range records {
		var held struct{ NIC *heldNIC } // each payload uses this name
		if json.Unmarshal(r.Payload, &held) == nil {
			add(held.NIC)
		}
	}
	return users
}

// namesOfHosts are the host's files for name resolution.
var namesOfHosts = []string{"/etc/resolv.conf", "/etc/hosts"}
