package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"github.com/lodge-kvm/lodge/api"
	"github.com/lodge-kvm/lodge/event"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/fleet"
	"github.com/lodge-kvm/lodge/guest"
	"github.com/lodge-kvm/lodge/host"
	"github.com/lodge-kvm/lodge/kernel"
	"github.com/lodge-kvm/lodge/kernel/systemd"
	"github.com/lodge-kvm/lodge/libvirt"
	"github.com/lodge-kvm/lodge/network"
	"github.com/lodge-kvm/lodge/secret"
	"github.com/lodge-kvm/lodge/socket"
	"github.com/lodge-kvm/lodge/store"
	"github.com/lodge-kvm/lodge/volume"
)

// serve opens the rooms, takes clients until ctx ends, and closes the rooms.
func serve(ctx context.Context, o *options, log *slog.Logger) error {
	if failpoint.Built {
		log.Warn("this daemon was built with fail points, for tests: use another one in earnest")
	}
	hangUps := listenForHangUps() // one that comes before all is open waits
	var opened closers
	defer opened.close(log)
	rooms, err := open(ctx, o, log, &opened)
	if err != nil {
		return err
	}
	all := fleet.New(fleet.Config{
		Guests: rooms.Guests, Pools: rooms.Pools, Events: rooms.Events, Log: log, Images: filepath.Join(o.data, "images"),
	})
	recovering, stop := context.WithTimeoutCause(ctx, recoverPatience, errServing)
	all.Recover(recovering)
	stop()
	gate, audit, err := o.guard(rooms, all, log, &opened)
	if err != nil {
		return err
	}
	reception, everybody, err := o.receive(ctx, gate, log)
	if err != nil {
		return err
	}
	listeners, err := o.listen(ctx, everybody)
	if err != nil {
		return err
	}
	l, err := socket.Listen(ctx, socket.Place{Path: filepath.Join(o.run, "lodge.sock"), GID: o.gid(), Everybody: everybody})
	if err != nil {
		return err
	}
	own := []api.Listener{{Listener: l}}
	certificates, err := o.listenAfar(ctx, &listeners, &own)
	if err != nil {
		return err
	}
	server := libvirt.New(libvirt.Config{Rooms: *rooms, Log: log, Groups: o.groups(), Gate: gate, Reception: reception, Audit: audit})
	sets := api.New(api.Config{
		Fleet: all, Guests: rooms.Guests, Events: rooms.Events, Starts: rooms.Guests.Starts,
		Log: log, Groups: o.groups(), Version: version, LibvirtClients: server.Clients, Gate: gate, Reception: reception, Audit: audit,
	})
	served, ctx := errgroup.WithContext(ctx)
	served.Go(func() error { heed(ctx, hangUps, log, gate, audit, certificates); return nil })
	served.Go(func() error { return server.Serve(ctx, listeners...) })
	served.Go(func() error { return sets.Serve(ctx, own...) })
	served.Go(func() error { all.Tidy(ctx); return nil })
	_, _ = fmt.Fprintln(said, "ready")
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warn("cannot tell systemd that the daemon is ready", "error", err)
	}
	rooms.Guests.Autostart(ctx)
	err = served.Wait()
	if _, err := daemon.SdNotify(false, daemon.SdNotifyStopping); err != nil {
		log.Warn("cannot tell systemd that the daemon is stopping", "error", err)
	}
	return err
}

// closers are what has been opened, closed in reverse.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c *closers) close(log *slog.Logger) {
	for i := range slices.Backward(*c) {
		if err := (*c)[i](); err != nil {
			log.Error("cannot close cleanly", "error", err)
		}
	}
}

// settlePatience is how long the daemon's readiness waits for pools, so that a
// client that comes at once finds their volumes.
const settlePatience = 2 * time.Second

// recoverPatience is how long clients wait for what an earlier daemon has left of tiles and clones to be removed:
// file systems that hang are gone on with beside them, and a tile whose guest does not end by then stays.
const recoverPatience = 10 * time.Second

var errServing = errors.New("clients are to be served first; it is gone on with then")

// lastVictim makes the daemon the last that the kernel ends when memory runs out,
// but for those that it never does.
const lastVictim = -900

// manyGuests is how many guests a host should have room for; what stops it
// before that is said when the daemon starts.
const manyGuests = 1000

// open opens every room, each with directories of its own.
func open(ctx context.Context, o *options, log *slog.Logger, opened *closers) (*libvirt.Rooms, error) {
	if err := o.settleRun(); err != nil {
		return nil, err
	}
	if !sameDirectory(o.run, o.data) { // else the store holds it
		lock, err := store.Hold(o.run, "run")
		if err != nil {
			return nil, err
		}
		opened.add(lock.Close)
	}
	if err := kernel.ForbidCore(); err != nil {
		log.Warn("core files of the daemon or of guests may hold secrets", "error", err)
	}
	records, err := store.OpenLogged(o.data, log)
	if err != nil {
		return nil, err
	}
	opened.add(records.Close)
	var root kernel.Root
	if err := root.SetOOMScore(os.Getpid(), lastVictim); err != nil {
		log.Info("when memory runs out, the daemon may be ended before guests are", "error", err)
	}
	inventory, err := host.NewInventory(root)
	if err != nil {
		return nil, err
	}
	groups := openGroups(root, o.instance(), log)
	opened.add(func() error {
		if err := groups.Close(); !fault.Is(err, fault.Busy) {
			return err
		}
		return nil // guests outlive the daemon, and so do their groups
	})
	labels, without, err := o.findLabels(root, log)
	if err != nil {
		return nil, err
	}
	quarters, err := o.isolate(groups, labels, log, opened)
	if err != nil {
		return nil, err
	}
	limits := host.NewLimits(root, groups, log)
	warn(limits, log)
	ledger := host.NewLedger(inventory)
	ledger.Limits = limits
	emulators, err := host.NewEmulators(records, o.emulator, log)
	if err != nil {
		return nil, err
	}
	emulators.Quarters = quarters
	devices := host.NewDevices(root)
	events := event.NewLog()
	networks, err := network.Open(ctx, network.Config{
		Data: filepath.Join(o.data, "network"), Run: filepath.Join(o.run, "network"), Instance: o.instance(),
		Store: records, Events: events, Log: log, Status: o.status(),
	})
	if err != nil {
		return nil, err
	}
	opened.add(func() error { networks.Close(); return nil })
	if err := seed(ctx, records, networks); err != nil {
		log.Warn("cannot define the default network; clients that expect it will say so", "error", err)
	}
	secrets, err := secret.Open(secret.Config{Store: records, Key: filepath.Join(o.data, "secret.key"), Events: events, Log: log})
	if err != nil {
		return nil, err
	}
	opened.add(func() error { secrets.Close(); return nil })
	pools, err := volume.Open(volume.Options{Store: records, Events: events, Log: log, Secrets: secrets, Boot: bootID(), Quarters: quarters})
	if err != nil {
		return nil, err
	}
	opened.add(func() error { pools.Close(); return nil })
	settleCtx, stop := context.WithTimeout(ctx, settlePatience)
	defer stop()
	if err := pools.Settle(settleCtx); err != nil {
		log.Warn("some pools are still being read; their volumes appear when that is done", "error", err)
	}
	guests, err := guest.Open(guest.Config{
		DataDir: filepath.Join(o.data, "guest"), RunDir: filepath.Join(o.run, "guest"), Instance: o.instance(),
		Log: log, Store: records, Events: events, Emulators: emulators, Ledger: ledger,
		Starts:   host.NewStarts(root, runtime.NumCPU(), log),
		Networks: networks, Pools: pools, Secrets: secrets, Cgroups: groups, Kernel: root, Boot: bootID(),
		Prepared: max(o.prepared, 0), Quarters: quarters, StayFull: !o.resumeOnRoom, GiveRNG: o.rng,
		Labels: labels, NoLabels: without, LabelsRequired: o.labels == labelsRequired,
	})
	if err != nil {
		return nil, err
	}
	opened.add(func() error { guests.Close(); return nil })
	return &libvirt.Rooms{Events: events, Guests: guests, Networks: networks, Secrets: secrets, Pools: pools, Host: inventory, Devices: devices, Emulators: emulators}, nil
}

// openGroups opens the control groups of guests, below a unit of systemd's where
// that is the first process.
func openGroups(root kernel.Root, instance string, log *slog.Logger) *kernel.Cgroups {
	var owner kernel.Owner
	if found := systemd.Find(); found != nil {
		owner = found
	}
	groups := kernel.OpenOwnedCgroups(root, instance, owner)
	if err := groups.Ungranted(); err != nil {
		log.Warn("systemd grants no control group for guests; they stay in its unit if any runs there, else their groups are made beside its units", "error", err)
	}
	return groups
}

// warn raises the daemon's own limits, and says which others will stop this host.
func warn(limits *host.Limits, log *slog.Logger) {
	warnings, err := limits.Prepare(manyGuests)
	if err != nil {
		log.Warn("cannot check the host's limits", "error", err)
	}
	for _, w := range warnings {
		log.Warn("this host will run into a limit", "limit", w)
	}
}

// seeds are the records of what a fresh data directory was given.
var seeds = store.Kind{Name: "seed", Version: 1}

// seed defines, once in the life of a data directory, the network that every
// libvirt client expects to find. A user who removes it does not get it back.
func seed(ctx context.Context, records *store.Store, networks *network.Networks) error {
	var given bool
	err := records.Get(seeds, "default network", &given)
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	doc, err := network.DefaultNetwork()
	if err != nil {
		return err
	}
	if _, err := networks.Define(ctx, doc, false); err != nil && !fault.Is(err, fault.Exists) {
		return err
	}
	return records.Put(seeds, "default network", true)
}

// listen opens the daemon's sockets. Where rules or polkit say who comes in,
// the sockets are there for everybody.
func (o *options) listen(ctx context.Context, everybody bool) ([]libvirt.Listener, error) {
	names := []string{filepath.Join(o.run, "libvirt-sock")}
	if o.libvirtSockets {
		names = append(names, "/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock")
	}
	gid := o.gid()
	var listeners []libvirt.Listener
	for _, name := range names {
		for _, p := range []socket.Place{{Path: name, GID: gid, Everybody: everybody}, {Path: name + "-ro", Everybody: true}} {
			l, err := socket.Listen(ctx, p)
			if err != nil {
				return nil, err
			}
			listeners = append(listeners, libvirt.Listener{Listener: l, ReadOnly: strings.HasSuffix(p.Path, "-ro")})
		}
	}
	return listeners, nil
}

// status is where the host's name service and scripts look for the addresses of guests: in
// libvirt's own folder where the daemon stands in for libvirt, else in one of its own.
func (o *options) status() string {
	if o.libvirtSockets {
		return "/var/lib/libvirt/dnsmasq"
	}
	return "" // the networks' own
}

// gid is the group that the read-write sockets are given to; 0: root alone.
func (o *options) gid() int {
	if g := o.groups(); len(g) > 0 {
		return int(g[0])
	}
	return 0
}

// groups are those whose members may use the read-write socket.
func (o *options) groups() []uint32 {
	g, err := user.LookupGroup(o.group)
	if err != nil {
		return nil // the group is a convenience, and root is served without it
	}
	id, err := strconv.ParseUint(g.Gid, 10, 32)
	if err != nil {
		return nil
	}
	return []uint32{uint32(id)}
}

// settleRun makes the run directory, and has it go by one name whichever links lead there:
// the next daemon finds control groups, networks' programs and firewall rules by it.
func (o *options) settleRun() error {
	if err := os.MkdirAll(o.run, 0o755); err != nil {
		return fmt.Errorf("cannot make the run directory: %w", err)
	}
	path, err := realPath(o.run)
	if err != nil {
		return fmt.Errorf("cannot find the run directory: %w", err)
	}
	if main, err := realPath(defaultRun); err == nil && path == main {
		path = defaultRun
	}
	o.run = path
	return nil
}

func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

func sameDirectory(one, other string) bool {
	a, err := os.Stat(one)
	b, err2 := os.Stat(other)
	return err == nil && err2 == nil && os.SameFile(a, b)
}

// instance names this daemon where several share a name space: empty for the
// main daemon, and else made from its run directory.
func (o *options) instance() string {
	if o.run == defaultRun {
		return ""
	}
	sum := sha256.Sum256([]byte(o.run))
	return hex.EncodeToString(sum[:3])
}

// bootID identifies this boot of the host; empty where the kernel does not tell.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
