package provision

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// QEMU serves an interface of type user through the host's network. A guest's QEMU runs in that network
// only if the guest needed it at its start, and cannot be moved there later. So an interface that is
// attached to another guest is served by a second QEMU without a guest, which runs in the host's network as
// a user of its own. A socket connects the two.

// LacksNetwork reports whether a guest's QEMU cannot reach the host's network.
func LacksNetwork(r *machine.Registry, run *machine.Instance) bool {
	return run.User != nil && !r.Kernel.SharesNetwork(run.PID)
}

// userNetworkThreads and userNetworkFiles limit that second QEMU. It needs a few threads, and a file for each
// connection of the guest.
const userNetworkThreads, userNetworkFiles = 16, 4096

// LaunchUserNetwork launches the program.
func LaunchUserNetwork(ctx context.Context, r *machine.Registry, sc scope.Scope, run *machine.Instance, emulator string, user sandbox.User, wire *os.File) (*qemuprocess.Process, error) {
	args := qemu.UserNetwork()
	log, err := OpenLog(r, run.Name, "serving a user network", emulator, &qemu.Command{Args: args})
	if err != nil {
		return nil, err
	}
	defer log.Close()
	place := &sandbox.Spec{
		User: user, Program: emulator, HostNetwork: true, Label: run.Labels.Helper(),
		Limits: sandbox.Limits{Threads: userNetworkThreads, Open: userNetworkFiles},
	}
	defer closeSandboxFiles(place)
	for _, path := range resolverFiles {
		f, err := openPermitted(ctx, sc, path)
		if err == nil {
			place.ReadOnlyFiles = append(place.ReadOnlyFiles, sandbox.ReadOnlyFile{Path: path, File: f})
		}
	}
	return qemuprocess.Launch(ctx, qemuprocess.Spec{
		Binary: emulator, Args: args, Env: Environment("/"), Dir: "/", Files: []*os.File{wire}, Log: log, Builder: r.Isolation.Builder, Sandbox: place,
	})
}

// WatchUserNetwork waits until the program or the daemon ends. It reports a program that ends while it is
// still needed: nothing else shows that the interface is dead.
func WatchUserNetwork(serving context.Context, r *machine.Registry, process *qemuprocess.Process, log *slog.Logger) {
	select {
	case <-process.Exited():
		if serving.Err() == nil {
			log.Error("program of an interface of type user has ended; detach the interface and attach it again", "exit", process.Exit().String())
		}
	case <-r.Life.Done():
		process.Release()
	}
}

// endUserNetwork returns the release that ends the program of an adopted guest's interface and frees its
// user, unless another guest has been given that user since.
func endUserNetwork(r *machine.Registry, user sandbox.User, guest string, log *slog.Logger) func(context.Context) error {
	if r.Isolation == nil { // the guest's control group ends it
		return func(context.Context) error { return nil }
	}
	if !r.Isolation.Users.Reserve(user, guest) {
		log.Error("user of an interface of type user now belongs to another guest; not freed", "user", user.UID)
		return func(context.Context) error { return nil }
	}
	return func(context.Context) error { return r.Isolation.Users.Free(user) }
}

// userNetworks returns the users of the programs that serve interfaces of type user for the guest of a
// run record.
func userNetworks(rec *machine.RunRecord, dir string) (users []sandbox.User) {
	add := func(n *machine.HeldNIC) {
		if n != nil && n.User != nil {
			users = append(users, *n.User)
		}
	}
	for i := range rec.NICs {
		add(&rec.NICs[i])
	}
	records, err := operation.FileJournal{Dir: dir}.Read()
	if err != nil {
		return users // such a guest is not adopted
	}
	for _, r := range records {
		var held struct{ NIC *machine.HeldNIC } // each payload uses this name
		if json.Unmarshal(r.Payload, &held) == nil {
			add(held.NIC)
		}
	}
	return users
}

// resolverFiles are the host's files for name resolution.
var resolverFiles = []string{"/etc/resolv.conf", "/etc/hosts"}
