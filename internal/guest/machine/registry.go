package machine

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/base/keylock"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// Config is what a registry works with. All fields are required unless they say otherwise.
type Config struct {
	// DataDir and RunDir are the registry's own directories.
	DataDir, RunDir string
	// Instance prefixes names in places that several daemons share. It is empty for the host's main daemon.
	Instance  string
	Log       *slog.Logger
	Store     *store.Store
	Events    *event.Log
	Emulators *resources.Emulators
	Ledger    *resources.Ledger
	// Starts admits the launches of guests. Nil: each launches at once.
	Starts   *resources.StartQueue
	Networks *network.Networks
	Pools    *volume.Pools
	// Secrets holds the keys of encrypted disks. Nil: there are none.
	Secrets *secret.Secrets
	Cgroups *kernel.Cgroups
	Kernel  kernel.Root
	// Prepared is how many QEMUs the pool of prepared QEMUs may hold. 0: none.
	Prepared int
	// Isolation runs each guest's QEMU in a sandbox as a user of its own. Nil: QEMU runs as the daemon does.
	Isolation *sandbox.Isolation
	// AddRNG adds a virtio-rng to new machines if their document mentions none.
	AddRNG bool
	// Labels is the host's mandatory access control. Nil: guests get no labels, NoLabels says why, and with
	// LabelsRequired they do not start.
	Labels         *seclabel.Host
	NoLabels       error
	LabelsRequired bool
	// KeepFullPaused leaves guests paused that ran out of disk space on the host.
	KeepFullPaused bool
	// Boot identifies this boot of the host. Empty: unknown.
	Boot string
}

// Registry finds guests by name, UUID and ID. Its lock guards the maps and is held only while they are read
// or changed.
type Registry struct {
	Config
	Log    *slog.Logger
	Store  *store.Store
	Events *event.Log
	// Life ends the loops. It lives as long as the daemon.
	Life          context.Context
	Stop          context.CancelCauseFunc
	Loops         sync.WaitGroup
	Ports         Ports
	Sampler       *Sampler
	Meter         *hostnet.Meter // counts the traffic of all guests' interfaces
	WarmPool      *WarmPool
	SpaceWatch    *SpaceWatch
	UniqueIndex   *UniqueIndex
	PendingStarts PendingStarts
	LabelLeases   filelabel.LabelLeases
	Devices       DeviceClaims
	HeaderLocks   keylock.Locks[filelabel.FileID] // locks the headers of saved images
	// RemovalLocks locks, by UUID, the files and resources that a guest leaves behind. The next guest of that UUID
	// is made when the removal is done.
	RemovalLocks keylock.Locks[string]
	// Undefinitions are the open undefine operations, by UUID. Mu guards them.
	Undefinitions map[string]*operation.Set[*Registry]
	// LeftLabels are the labels that an earlier daemon left, by guest, until all guests are adopted.
	LeftLabels map[string]*filelabel.Labels

	// Set by newRegistry of package guest, which imports this package.
	Kinds       operation.Kinds[*Instance]     // of operations on running guests
	ApplyEffect func(*Guest, lifecycle.Effect) // in the guest's loop
	HandleEvent func(*Guest, qmp.Event, bool)  // in the guest's loop

	Mu           sync.RWMutex
	GuestsByName map[string]*Guest
	GuestsByUUID map[string]*Guest
	GuestsByID   map[int]*Guest
	lastID       int
}

// ByName finds a guest by its name.
func (r *Registry) ByName(name string) (*Guest, error) {
	r.Mu.RLock()
	defer r.Mu.RUnlock()
	if g := r.GuestsByName[name]; g != nil {
		return g, nil
	}
	return nil, fault.New(fault.NotFound, fault.Domain, "no domain with matching name '%s'", name)
}

// ByUUID finds a guest by its UUID, in lower case with dashes.
func (r *Registry) ByUUID(uuid string) (*Guest, error) {
	r.Mu.RLock()
	defer r.Mu.RUnlock()
	if g := r.GuestsByUUID[uuid]; g != nil {
		return g, nil
	}
	return nil, fault.New(fault.NotFound, fault.Domain, "no domain with matching uuid '%s'", uuid)
}

// ByID finds a running guest by its ID.
func (r *Registry) ByID(id int) (*Guest, error) {
	r.Mu.RLock()
	defer r.Mu.RUnlock()
	if g := r.GuestsByID[id]; g != nil {
		return g, nil
	}
	return nil, fault.New(fault.NotFound, fault.Domain, "no domain with matching id %d", id)
}

// All returns every guest, sorted by name.
func (r *Registry) All() []*Guest {
	r.Mu.RLock()
	all := make([]*Guest, 0, len(r.GuestsByUUID))
	for _, g := range r.GuestsByUUID {
		if v := g.View(); v.Persistent || v.Active != nil || v.Quarantined {
			all = append(all, g) // without guests that are being defined for the first time
		}
	}
	r.Mu.RUnlock()
	slices.SortFunc(all, func(a, b *Guest) int { return cmp.Compare(a.Name(), b.Name()) })
	return all
}

// CheckName refuses a request for a guest that was renamed since it was found, because another guest may
// have that name by now. The client notices this when it looks again. It runs in the loop.
func (g *Guest) CheckName(name string) error {
	if g.Record.Name == name {
		return nil
	}
	return ErrGone(name)
}

// MaxGuests bounds how many guests there may be: it is the longest list that libvirt's clients accept.
const MaxGuests = 16384

// Remove removes a guest from the maps, unless another guest has its name or UUID by now.
func (r *Registry) Remove(g *Guest) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if r.GuestsByUUID[g.UUID] == g {
		delete(r.GuestsByUUID, g.UUID)
	}
	if name := g.Name(); r.GuestsByName[name] == g {
		delete(r.GuestsByName, name)
	}
}

// AddName gives a guest a second name, if that is free. During a rename the guest has both names until the
// store is updated, so that no other guest can take either.
func (r *Registry) AddName(g *Guest, name string) error {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if other := r.GuestsByName[name]; other != nil {
		return fault.New(fault.Exists, fault.Domain, "domain with name '%s' already exists", name)
	}
	r.GuestsByName[name] = g
	return nil
}

// DropName removes one of a guest's two names.
func (r *Registry) DropName(name string) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	delete(r.GuestsByName, name)
}

// NewID returns the next ID of a running guest. IDs count up for the life of the daemon. None is used
// twice, not even those of adopted guests.
func (r *Registry) NewID() int {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.lastID++
	return r.lastID
}

// SetID enters a running guest under its ID.
func (r *Registry) SetID(g *Guest, id int) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.GuestsByID[id] = g
	r.lastID = max(r.lastID, id)
	g.StatsCache.Restart(time.Now())
	if len(r.GuestsByID) == 1 {
		r.Sampler.Nudge() // it sleeps while no guest runs
	}
}

// StatsCaches returns the statistics caches of the running guests, in no order.
func (r *Registry) StatsCaches() []*StatsCache {
	r.Mu.RLock()
	defer r.Mu.RUnlock()
	all := make([]*StatsCache, 0, len(r.GuestsByID))
	for _, g := range r.GuestsByID {
		all = append(all, g.StatsCache)
	}
	return all
}

// DropID removes the entry of a guest that has ended. Its ID is not used again.
func (r *Registry) DropID(id int) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	delete(r.GuestsByID, id)
}
