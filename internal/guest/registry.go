package guest

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
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
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
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
	Starts   *resources.Starts
	Networks *network.Networks
	Pools    *volume.Pools
	// Secrets holds the keys of encrypted disks. Nil: there are none.
	Secrets *secret.Book
	Cgroups *kernel.Cgroups
	Kernel  kernel.Root
	// Prepared is how many QEMUs the pool of prepared QEMUs may hold. 0: none.
	Prepared int
	// Quarters runs each guest's QEMU in a sandbox as a user of its own. Nil: QEMU runs as the daemon does.
	Quarters *sandbox.Isolation
	// GiveRNG adds a virtio-rng to new machines if their document mentions none.
	GiveRNG bool
	// Labels is the host's mandatory access control. Nil: guests get no labels, NoLabels says why, and with
	// LabelsRequired they do not start.
	Labels         *seclabel.Host
	NoLabels       error
	LabelsRequired bool
	// StayFull leaves guests paused that ran out of disk space on the host.
	StayFull bool
	// Boot identifies this boot of the host. Empty: unknown.
	Boot string
}

// Registry finds guests by name, UUID and ID. Its lock guards the maps and is held only while they are read
// or changed.
type Registry struct {
	Config
	log    *slog.Logger
	store  *store.Store
	events *event.Log
	// life ends the loops. It lives as long as the daemon.
	life    context.Context
	stop    context.CancelCauseFunc
	loops   sync.WaitGroup
	ports   ports
	sampler *sampler
	meter   *hostnet.Meter // counts the traffic of all guests' interfaces
	pool    *pool
	rooms   *rooms
	traits  *traits
	dues    dues
	lent    lendings
	devices deviceClaims
	headers turns[fileID] // locks the headers of saved images
	// removing locks, by UUID, what a guest leaves behind. The next guest of that UUID is made when the
	// removal is done.
	removing turns[string]
	// undefinitions are the open ones, by UUID. mu guards them.
	undefinitions map[string]*operation.Set[*Registry]
	// leftLabels are the labels that an earlier daemon left, by guest, until all guests are adopted.
	leftLabels map[string]*labels

	// What a guest's loop does is the room's above; newRegistry sets it.
	kinds       operation.Kinds[*run]          // of operations on running guests
	carryOut    func(*Guest, lifecycle.Effect) // in the guest's loop
	handleEvent func(*Guest, qmp.Event, bool)  // in the guest's loop

	mu     sync.RWMutex
	byName map[string]*Guest
	byUUID map[string]*Guest
	byID   map[int]*Guest
	lastID int
}

func newRegistry(c Config) *Registry {
	r := &Registry{
		Config: c, log: c.Log, store: c.Store, events: c.Events,
		byName: map[string]*Guest{}, byUUID: map[string]*Guest{}, byID: map[int]*Guest{},
		undefinitions: map[string]*operation.Set[*Registry]{},
		kinds:         guestOperations, carryOut: (*Guest).carryOut, handleEvent: (*Guest).handleEvent,
	}
	r.life, r.stop = context.WithCancelCause(context.Background())
	r.sampler = newSampler(r.gauges)
	if c.Labels != nil {
		c.Prepared = 0 // a process gets its label or profile when it starts
	}
	r.pool = newPool(r, c.Prepared)
	r.rooms = newRooms(r)
	r.traits = newTraits()
	r.dues.left = map[string]due{}
	return r
}

// Close ends the loops and leaves every QEMU running.
func (r *Registry) Close() {
	r.stop(fault.New(fault.Aborted, fault.Host, "the daemon is stopping"))
	r.loops.Wait()
	for _, set := range r.undefinitionSets() {
		set.Close()
	}
	for _, g := range r.byUUID {
		if g.run != nil && g.run.ops != nil {
			g.run.ops.Close()
		}
	}
	r.meter.Close()
}

// ByName finds a guest by its name.
func (r *Registry) ByName(name string) (*Guest, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if g := r.byName[name]; g != nil {
		return g, nil
	}
	return nil, fault.New(fault.NotFound, fault.Domain, "no domain with matching name '%s'", name)
}

// ByUUID finds a guest by its UUID, in lower case with dashes.
func (r *Registry) ByUUID(uuid string) (*Guest, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if g := r.byUUID[uuid]; g != nil {
		return g, nil
	}
	return nil, fault.New(fault.NotFound, fault.Domain, "no domain with matching uuid '%s'", uuid)
}

// ByID finds a running guest by its ID.
func (r *Registry) ByID(id int) (*Guest, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if g := r.byID[id]; g != nil {
		return g, nil
	}
	return nil, fault.New(fault.NotFound, fault.Domain, "no domain with matching id %d", id)
}

// All returns every guest, sorted by name.
func (r *Registry) All() []*Guest {
	r.mu.RLock()
	all := make([]*Guest, 0, len(r.byUUID))
	for _, g := range r.byUUID {
		if v := g.View(); v.Persistent || v.Active != nil || v.Quarantined {
			all = append(all, g) // without guests that are being defined for the first time
		}
	}
	r.mu.RUnlock()
	slices.SortFunc(all, func(a, b *Guest) int { return cmp.Compare(a.Name(), b.Name()) })
	return all
}

// claimed calls do with the guest of that name and UUID, which it makes if both are free. If the guest
// found is gone before do ran, it tries again with a new one, so that no client is refused because of it.
func (r *Registry) claimed(ctx context.Context, name, uuid string, do func(*Guest) error) (*Guest, error) {
	for {
		leave, err := r.removing.take(ctx, uuid)
		if err != nil {
			return nil, fault.Wrap(err, fault.Of(err), fault.Domain, "cannot make domain %q yet: files of the previous domain with UUID %s are still being removed", name, uuid)
		}
		g, err := r.claimAsHeir(name, uuid)
		leave()
		if err != nil {
			return nil, err
		}
		if err = do(g); !errors.Is(err, errLeft) || r.life.Err() != nil {
			return g, r.unclaim(g, err)
		}
	}
}

// claimAsHeir is claim with a check of what an earlier guest of that UUID left. It checks while no guest
// has the UUID: otherwise it would overlook what the earlier guest has yet to leave.
func (r *Registry) claimAsHeir(name, uuid string) (*Guest, error) {
	for {
		_, none := r.ByUUID(uuid)
		if none != nil {
			if err := r.checkHeir(name, uuid); err != nil {
				return nil, err
			}
		}
		g, err := r.claim(name, uuid, none != nil)
		if !errors.Is(err, errLeft) {
			return g, err
		}
	}
}

// isCalled refuses a request for a guest that was renamed since it was found, because another guest may
// have that name by now. The client notices this when it looks again. It runs in the loop.
func (g *Guest) isCalled(name string) error {
	if g.record.Name == name {
		return nil
	}
	return errGone(name)
}

// maxGuests bounds how many guests there may be: it is the longest list that libvirt's clients accept.
const maxGuests = 16384

// claim returns the guest of that name and UUID. It makes the guest if both are free and mayBeNew is set.
// If another guest has one of the two, it returns a conflict.
func (r *Registry) claim(name, uuid string, mayBeNew bool) (g *Guest, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	named, known := r.byName[name], r.byUUID[uuid]
	switch {
	case named == nil && known == nil && !mayBeNew:
		return nil, errGone(name) // it was there a moment ago
	case named == nil && known == nil && len(r.byUUID) >= maxGuests:
		return nil, fault.New(fault.NoCapacity, fault.Domain, "there are %d domains already; undefine one", maxGuests)
	case named == nil && known == nil:
		if err := domain.CheckName(name); err != nil {
			return nil, err // an existing guest may have such a name from before
		}
		g = newGuest(r, name, uuid)
		r.byName[name], r.byUUID[uuid] = g, g
		r.run(g)
		return g, nil
	case named == known:
		return named, nil
	case known != nil:
		return nil, fault.New(fault.Exists, fault.Domain, "domain '%s' is already defined with uuid %s", known.Name(), uuid)
	default:
		return nil, fault.New(fault.Exists, fault.Domain, "domain '%s' already exists with uuid %s", name, named.uuid)
	}
}

// unclaim forgets a guest after its request failed, unless it is defined or runs, and returns the failure.
func (r *Registry) unclaim(g *Guest, failure error) error {
	if failure == nil {
		return nil
	}
	_ = g.change(r.life, scope.Daemon("forgetting a guest that has ended"), "", func() error { g.forgetIfNothing(); return nil }) // it is gone already, or the daemon stops
	return failure
}

// run starts a guest's loop. It ends with the registry, or with the guest.
func (r *Registry) run(g *Guest) {
	r.loops.Go(func() { g.loop(r.life) })
}

// remove removes a guest from the maps, unless another guest has its name or UUID by now.
func (r *Registry) remove(g *Guest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byUUID[g.uuid] == g {
		delete(r.byUUID, g.uuid)
	}
	if name := g.Name(); r.byName[name] == g {
		delete(r.byName, name)
	}
}

// addName gives a guest a second name, if that is free. During a rename the guest has both names until the
// store is updated, so that no other guest can take either.
func (r *Registry) addName(g *Guest, name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.byName[name]; other != nil {
		return fault.New(fault.Exists, fault.Domain, "domain with name '%s' already exists", name)
	}
	r.byName[name] = g
	return nil
}

// dropName removes one of a guest's two names.
func (r *Registry) dropName(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byName, name)
}

// newID returns the next ID of a running guest. IDs count up for the life of the daemon. None is used
// twice, not even those of adopted guests.
func (r *Registry) newID() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastID++
	return r.lastID
}

// setID enters a running guest under its ID.
func (r *Registry) setID(g *Guest, id int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[id] = g
	r.lastID = max(r.lastID, id)
	g.gauge.restart(time.Now())
	if len(r.byID) == 1 {
		r.sampler.nudge() // it sleeps while no guest runs
	}
}

// gauges returns the statistics caches of the running guests, in no order.
func (r *Registry) gauges() []*gauge {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make([]*gauge, 0, len(r.byID))
	for _, g := range r.byID {
		all = append(all, g.gauge)
	}
	return all
}

func (r *Registry) dropID(id int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, id)
}
