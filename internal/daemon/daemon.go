// Package daemon opens all packages that a daemon consists of, from the bottom up, and closes them in reverse:
// the store, the host, networks, secrets, pools, guests, fleet, and the access rules. lodged opens one, and so do
// tests that need a whole daemon. Flags, sockets, servers and process settings stay out of it.
package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/control/memory"
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
	// DefaultRun is the run directory of the main daemon. Other instances name their own.
	DefaultRun = "/run/lodge"
	// DefaultAccess applies to the main daemon only: others are for tests, or name their own file.
	DefaultAccess = "/etc/lodge/access.yaml"
	// DefaultEmulator is the QEMU binary for guests that name none.
	DefaultEmulator = "/usr/bin/qemu-system-x86_64"
)

// Config holds a daemon's directories and settings. Only the directories have no useful zero value.
type Config struct {
	Data string // directory of data that must survive a reboot
	Run  string // directory of sockets and of state that a reboot ends
	Log  *slog.Logger
	// Emulator is the QEMU binary for guests that name none; "": DefaultEmulator.
	Emulator string
	// Prepared is the number of QEMUs kept ready for guests that are started often.
	Prepared int
	// StayFull keeps guests paused that were paused because a disk of the host was full, also once there is space.
	StayFull bool
	// GiveRNG adds a virtio-rng to a new guest if its definition has none.
	GiveRNG bool
	// MemoryMode is what the memory manager may do; "": nothing. GuestMemory bounds what all guests together may
	// hold, in bytes; 0: what the host has.
	MemoryMode  memory.Mode
	GuestMemory uint64
	// Status is the folder where the host's name service looks for guests' addresses; "": a folder below Data.
	Status string

	// Access is the file of access rules; "": DefaultAccess, for the main daemon and if it exists.
	Access string
	// Audit is a file for audit lines, in addition to the log; "": none.
	Audit string

	// Isolated runs each guest's QEMU as its own user in its own sandbox.
	Isolated bool
	// Users is the range of those UIDs, as FIRST-LAST; "": the default range, which nothing else uses.
	Users string
	// Cores never runs two isolated guests on one processor core at the same time.
	Cores bool
	// Labels selects labels of SELinux or AppArmor for isolated guests.
	Labels Labels

	// Kernel is the host's kernel, or a recorded one. Security is the kernel with SELinux or AppArmor, if it is
	// another one.
	Kernel, Security kernel.Root
	// Boot identifies this boot of the host; "": the kernel's boot ID.
	Boot string
}

// Daemon is an open daemon.
type Daemon struct {
	Run      string // directory, without symbolic links, the same for all daemons
	Instance string // name of the daemon if several share a namespace; "": the main one

	Store      *store.Store
	Host       *resources.Inventory
	Devices    *resources.Devices
	Emulators  *resources.Emulators
	Groups     *kernel.Cgroups
	Events     *event.Log
	Networks   *network.Networks
	Secrets    *secret.Secrets
	Pools      *volume.Pools
	Guests     *guest.Registry
	Fleet      *fleet.Fleet
	Memory     *memory.Manager
	Authorizer *authz.Authorizer
	Audit      *authz.Audit

	config         Config
	log            *slog.Logger
	ledger         *resources.Ledger
	labels         *seclabel.Host
	noLabelsReason error // why there are no labels
	isolation      *sandbox.Isolation
	closers        []func() error // close the open packages, in reverse order
}

// Open opens every package, each with directories of its own. It adopts the state that an earlier daemon has left.
func Open(ctx context.Context, c Config) (*Daemon, error) {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.Emulator = cmp.Or(c.Emulator, DefaultEmulator)
	c.Boot = cmp.Or(c.Boot, bootID())
	d := &Daemon{config: c, log: c.Log}
	for _, open := range []func(context.Context) error{
		d.openStore, d.openHost, d.openNetworks, d.openSecrets, d.openPools, d.openGuests, d.openFleet, d.openAccess, d.openMemory,
	} {
		if err := open(ctx); err != nil {
			d.Close()
			return nil, err
		}
	}
	return d, nil
}

// Close closes the open packages, in reverse. Guests keep running.
func (d *Daemon) Close() {
	for _, f := range slices.Backward(d.closers) {
		if err := f(); err != nil {
			d.log.Error("cannot close cleanly", "error", err)
		}
	}
	d.closers = nil
}

func (d *Daemon) onClose(f func() error) { d.closers = append(d.closers, f) }
