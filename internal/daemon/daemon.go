// Package daemon opens all rooms that a daemon consists of, from the bottom up, and closes them in reverse:
// the store, the host, networks, secrets, pools, guests, fleet, and the rules of access. lodged opens one, and so do
// tests that need a whole daemon. Flags, sockets, servers and what concerns the process itself stay out of it.
package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

const (
	// DefaultRun is the run directory of the main daemon. Other instances name theirs.
	DefaultRun = "/run/lodge"
	// DefaultAccess is for the main daemon alone: others are for tests, or name theirs.
	DefaultAccess = "/etc/lodge/access.yaml"
	// DefaultEmulator is the QEMU binary of guests that name none.
	DefaultEmulator = "/usr/bin/qemu-system-x86_64"
)

// Config says where a daemon lives and what it does for guests. Only the directories have no useful zero value.
type Config struct {
	Data string // directory of what must survive a reboot
	Run  string // directory of sockets and of what a reboot ends
	Log  *slog.Logger
	// Emulator is the QEMU binary of guests that name none; "": DefaultEmulator.
	Emulator string
	// Prepared is how many QEMUs may wait for guests that are started often.
	Prepared int
	// StayFull leaves guests that were paused for want of room on the host paused when there is room.
	StayFull bool
	// GiveRNG gives a virtio-rng to new guests that say nothing of one.
	GiveRNG bool
	// Status is where the host's name service looks for guests' addresses; "": a folder below Data.
	Status string

	// Access is the file of rules that say who may do what; "": for the main daemon DefaultAccess, if that is there.
	Access string
	// Audit is a file that gets the audit's lines beside the log; "": there is none.
	Audit string

	// Isolated runs each guest's QEMU as a user of its own, in a chamber of its own.
	Isolated bool
	// Users are the numbers of those users, as FIRST-LAST; "": a range that nobody else uses.
	Users string
	// Cores lets no two isolated guests run on one core of a processor at the same time.
	Cores bool
	// Labels says whether isolated guests get labels of SELinux or AppArmor.
	Labels Labels

	// Kernel is the host, or a recorded one. Security is the one whose SELinux or AppArmor counts, if that
	// is another one.
	Kernel, Security kernel.Root
	// Boot identifies this boot of the host; "": as the kernel has it.
	Boot string
}

// Daemon is what was opened.
type Daemon struct {
	Run      string // directory, by the one name that it has for all daemons
	Instance string // name of the daemon where several share a name space; "": the main one

	Store     *store.Store
	Host      *resources.Inventory
	Devices   *resources.Devices
	Emulators *resources.Emulators
	Groups    *kernel.Cgroups
	Events    *event.Log
	Networks  *network.Networks
	Secrets   *secret.Book
	Pools     *volume.Pools
	Guests    *guest.Registry
	Fleet     *fleet.Fleet
	Gate      *authz.Gate
	Audit     *authz.Audit

	config   Config
	log      *slog.Logger
	ledger   *resources.Ledger
	labels   *seclabel.Host
	noLabels error // why there are none
	quarters *sandbox.Isolation
	opened   []func() error // what closes it
}

// Open opens every room, each with directories of its own. What an earlier daemon has left is taken over.
func Open(ctx context.Context, c Config) (*Daemon, error) {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.Emulator = cmp.Or(c.Emulator, DefaultEmulator)
	c.Boot = cmp.Or(c.Boot, bootID())
	d := &Daemon{config: c, log: c.Log}
	for _, open := range []func(context.Context) error{
		d.openStore, d.openHost, d.openNetworks, d.openSecrets, d.openPools, d.openGuests, d.openFleet, d.openAccess,
	} {
		if err := open(ctx); err != nil {
			d.Close()
			return nil, err
		}
	}
	return d, nil
}

// Close closes what has been opened, in reverse. Guests go on running.
func (d *Daemon) Close() {
	for _, f := range slices.Backward(d.opened) {
		if err := f(); err != nil {
			d.log.Error("cannot close cleanly", "error", err)
		}
	}
	d.opened = nil
}

func (d *Daemon) onClose(f func() error) { d.opened = append(d.opened, f) }
