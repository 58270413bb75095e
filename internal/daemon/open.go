package daemon

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/control/memory"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/systemd"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// poolsTimeout bounds the time that readiness waits for pools, so that an
// early client finds their volumes.
const poolsTimeout = 2 * time.Second

// recoverTimeout bounds the time that clients wait for the removal of leftover tiles and clones.
// A hung file system does not delay them longer. A tile stays if its guest has not ended by then.
const recoverTimeout = 10 * time.Second

var errServingFirst = errors.New("interrupted so that clients are served; it continues after that")

// manyGuests is the number of guests that a host should be able to run. Limits that are
// too low for it are logged when the daemon starts.
const manyGuests = 1000

// openStore locks both directories against other daemons.
func (d *Daemon) openStore(context.Context) error {
	run, err := resolveRunDir(d.config.Run)
	if err != nil {
		return err
	}
	d.Run, d.Instance = run, instanceName(run)
	if !sameDirectory(run, d.config.Data) { // otherwise the store holds it
		lock, err := store.LockDirectory(run, "run")
		if err != nil {
			return err
		}
		d.onClose(lock.Close)
	}
	d.Store, err = store.OpenLogged(d.config.Data, d.log)
	if err != nil {
		return err
	}
	d.onClose(d.Store.Close)
	return nil
}

func (d *Daemon) openHost(context.Context) (err error) {
	root := d.config.Kernel
	if d.Host, err = resources.NewInventory(root); err != nil {
		return err
	}
	d.openGroups()
	if err := d.openIsolation(); err != nil {
		return err
	}
	limits := resources.NewLimits(root, d.Groups, d.log)
	d.warnOfLimits(limits)
	d.ledger = resources.NewLedger(d.Host)
	d.ledger.Limits = limits
	if d.Emulators, err = resources.NewEmulators(d.Store, d.config.Emulator, d.log); err != nil {
		return err
	}
	d.Emulators.Isolation = d.isolation
	d.Devices = resources.NewDevices(root)
	return nil
}

// openGroups opens the control groups of guests. They lie below a unit of systemd if
// systemd is the first process.
func (d *Daemon) openGroups() {
	var owner kernel.Owner
	if found := systemd.Find(); found != nil {
		owner = found
	}
	d.Groups = kernel.OpenOwnedCgroups(d.config.Kernel, d.Instance, owner)
	if err := d.Groups.Ungranted(); err != nil {
		d.log.Warn("systemd grants no control group for guests; they stay in its unit if any runs there, otherwise their groups are made beside its units", "error", err)
	}
	d.onClose(func() error {
		if err := d.Groups.Close(); !fault.Is(err, fault.Busy) {
			return err
		}
		return nil // guests and their groups outlive the daemon
	})
}

// warnOfLimits raises the daemon's own limits, and logs other limits that are too low for this host.
func (d *Daemon) warnOfLimits(limits *resources.Limits) {
	warnings, err := limits.Prepare(manyGuests)
	if err != nil {
		d.log.Warn("cannot check the host's limits", "error", err)
	}
	for _, w := range warnings {
		d.log.Warn("host limit too low", "limit", w)
	}
}

func (d *Daemon) openNetworks(ctx context.Context) (err error) {
	d.Events = event.NewLog()
	d.Networks, err = network.Open(ctx, network.Config{
		Data: filepath.Join(d.config.Data, "network"), Run: filepath.Join(d.Run, "network"), Instance: d.Instance,
		Store: d.Store, Events: d.Events, Log: d.log, Status: d.config.Status,
	})
	if err != nil {
		return err
	}
	d.onClose(func() error { d.Networks.Close(); return nil })
	if err := d.defineDefaultNetwork(ctx); err != nil {
		d.log.Warn("cannot define the default network; clients that expect it will say so", "error", err)
	}
	return nil
}

// seedKind are records of the objects that were added to a fresh data directory.
var seedKind = store.Kind{Name: "seed", Version: 1}

// defineDefaultNetwork defines the network that every libvirt client expects, once in the life of
// a data directory. A user who removes it does not get it back.
func (d *Daemon) defineDefaultNetwork(ctx context.Context) error {
	var given bool
	err := d.Store.Get(seedKind, "default network", &given)
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	doc, err := network.DefaultNetwork()
	if err != nil {
		return err
	}
	if _, err := d.Networks.Define(ctx, scope.Daemon("the default network"), doc, false); err != nil && !fault.Is(err, fault.Exists) {
		return err
	}
	return d.Store.Put(seedKind, "default network", true)
}

func (d *Daemon) openSecrets(context.Context) (err error) {
	d.Secrets, err = secret.Open(secret.Config{Store: d.Store, Key: filepath.Join(d.config.Data, "secret.key"), Events: d.Events, Log: d.log})
	if err != nil {
		return err
	}
	d.onClose(func() error { d.Secrets.Close(); return nil })
	return nil
}

func (d *Daemon) openPools(ctx context.Context) (err error) {
	d.Pools, err = volume.Open(volume.Options{
		Store: d.Store, Events: d.Events, Log: d.log, Secrets: d.Secrets, Boot: d.config.Boot, Isolation: d.isolation,
	})
	if err != nil {
		return err
	}
	d.onClose(func() error { d.Pools.Close(); return nil })
	ctx, stop := context.WithTimeout(ctx, poolsTimeout)
	defer stop()
	if err := d.Pools.Settle(ctx); err != nil {
		d.log.Warn("pools still being read; their volumes appear later", "error", err)
	}
	return nil
}

func (d *Daemon) openGuests(context.Context) (err error) {
	c := d.config
	d.Guests, err = guest.Open(guest.Config{
		DataDir: filepath.Join(c.Data, "guest"), RunDir: filepath.Join(d.Run, "guest"), Instance: d.Instance,
		Log: d.log, Store: d.Store, Events: d.Events, Emulators: d.Emulators, Ledger: d.ledger,
		Starts:   resources.NewStartQueue(c.Kernel, runtime.NumCPU(), d.log),
		Networks: d.Networks, Pools: d.Pools, Secrets: d.Secrets, Cgroups: d.Groups, Kernel: c.Kernel, Boot: c.Boot,
		Prepared: max(c.Prepared, 0), Isolation: d.isolation, KeepFullPaused: c.StayFull, AddRNG: c.GiveRNG,
		Labels: d.labels, NoLabels: d.noLabelsReason, LabelsRequired: c.Labels == LabelsRequired,
	})
	if err != nil {
		return err
	}
	d.onClose(func() error { guest.Close(d.Guests); return nil })
	return nil
}

func (d *Daemon) openFleet(ctx context.Context) error {
	d.Fleet = fleet.Open(fleet.Config{
		Guests: d.Guests, Pools: d.Pools, Events: d.Events, Log: d.log, Images: filepath.Join(d.config.Data, "images"),
	})
	d.onClose(func() error { d.Fleet.Close(); return nil })
	ctx, stop := context.WithTimeoutCause(ctx, recoverTimeout, errServingFirst)
	defer stop()
	d.Fleet.Recover(ctx)
	return nil
}

// openAccess opens the access rules and the audit.
func (d *Daemon) openAccess(context.Context) (err error) {
	if d.Audit, err = authz.OpenAudit(d.config.Audit, d.log); err != nil {
		return err
	}
	d.onClose(d.Audit.Close)
	d.Authorizer, err = authz.New(authz.Config{
		File: d.rulesFile(), Guests: d.Guests, Fleet: d.Fleet, Pools: d.Pools, Networks: d.Networks, Secrets: d.Secrets, Log: d.log,
	})
	return err
}

// openMemory starts the memory manager. It ends before the guests' loops do.
func (d *Daemon) openMemory(context.Context) error {
	d.Memory = memory.New(memory.Config{
		Guests: d.Guests, Fleet: d.Fleet, Kernel: d.config.Kernel, Log: d.log,
		Mode: cmp.Or(d.config.MemoryMode, memory.Off), Most: d.config.GuestMemory,
	})
	ctx, stop := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); d.Memory.Run(ctx) }()
	d.onClose(func() error { stop(errClosing); <-done; return nil })
	return nil
}

var errClosing = errors.New("the daemon is stopping")

// rulesFile returns the file of access rules; empty: there is none.
func (d *Daemon) rulesFile() string {
	if d.config.Access != "" || d.Run != DefaultRun {
		return d.config.Access
	}
	if _, err := os.Lstat(DefaultAccess); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return DefaultAccess
}
