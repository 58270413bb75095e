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

// Config is what a registry works with. All of it is needed.
type Config struct {
	// DataDir and RunDir are the registry's own directories.
	DataDir, RunDir string
	// Instance prefixes what is named in places that daemons share; empty for
	// the host's main daemon.
	Instance  string
	Log       *slog.Logger
	Store     *store.Store
	Events    *event.Log
	Emulators *resources.Emulators
	Ledger    *resources.Ledger
	// Starts says when a guest may be launched; nil: at once.
	Starts   *resources.Starts
	Networks *network.Networks
	Pools    *volume.Pools
	// Secrets are what encrypted disks are opened with; nil: there are none.
	Secrets *secret.Book
	Cgroups *kernel.Cgroups
	Kernel  kernel.Root
	// Prepared is how many QEMUs may wait for guests that are started often; 0: none.
	Prepared int
	// Quarters are where guests' QEMUs run, each as a user of its own; nil: they run
	// as the daemon does.
	Quarters *sandbox.Quarters
	// GiveRNG gives a virtio-rng to new machines that say nothing of one.
	GiveRNG bool
	// Labels are what the host enforces; nil: guests have none, NoLabels says why, and
	// LabelsRequired has them not start then.
	Labels         *seclabel.Host
	NoLabels       error
	LabelsRequired bool
	// StayFull leaves guests that ran out of room on the host paused.
	StayFull bool
	// Boot identifies this boot of the host; empty where that is not known.
	Boot string
}

// Registry finds guests by name, UUID and ID. Its lock guards three maps and is
// never held over anything but looking into them.
type Registry struct {
	Config
	log    *slog.Logger
	store  *store.Store
	events *event.Log
	// life ends the loops; it is the daemon's.
	life    context.Context
	stop    context.CancelCauseFunc
	loops   sync.WaitGroup
	ports   ports
	sampler *sampler
	meter   *hostnet.Meter // of all guests' interfaces
	pool    *pool
	rooms   *rooms
	traits  *traits
	dues    dues
	lent    lendings
	devices deviceClaims
	headers turns[fileID] // at the headers of saved images
	// removing is of those who remove what a guest leaves behind, by UUID: the next one
	// with it is made when they are done.
	removing turns[string]
	// undefinitions are those that are under way or owed, by UUID; mu guards them.
	undefinitions map[string]*operation.Set[*Registry]
	// leftLabels are those that an earlier daemon left, by guest, until all are adopted.
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
		c.Prepared = 0 // nothing has a label, or a profile, before its start
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

// All gives every guest, by name.
func (r *Registry) All() []*Guest {
	r.mu.RLock()
	all := make([]*Guest, 0, len(r.byUUID))
	for _, g := range r.byUUID {
		if v := g.View(); v.Persistent || v.Active != nil || v.Quarantined {
			all = append(all, g) // and not one whose first definition is under way
		}
	}
	r.mu.RUnlock()
	slices.SortFunc(all, func(a, b *Guest) int { return cmp.Compare(a.Name(), b.Name()) })
	return all
}

// claimed does something to the guest of that name and UUID, which is made when neither is
// taken. One that ends before it was asked makes room for another: nobody is refused for it.
func (r *Registry) claimed(ctx context.Context, name, uuid string, do func(*Guest) error) (*Guest, error) {
	for {
		leave, err := r.removing.take(ctx, uuid)
		if err != nil {
			return nil, fault.Wrap(err, fault.Of(err), fault.Domain, "cannot make domain %q yet: files of the last one with UUID %s are still being removed", name, uuid)
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

// claimAsHeir is claim where one that is made may have what an earlier one left: that is looked at while
// none is there, or what the earlier one has yet to leave would be taken for nothing.
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

// isCalled refuses what is meant for a guest of that name, where it has been renamed since it was found:
// the name may be another's by now. Who asked finds that out by looking again. It runs in the loop.
func (g *Guest) isCalled(name string) error {
	if g.record.Name == name {
		return nil
	}
	return errGone(name)
}

// maxGuests bounds how many guests there may be: the longest list that libvirt's
// clients take.
const maxGuests = 16384

// claim gives the guest of that name and UUID, making it, where it may be new, when neither is
// taken. One of the two taken by another guest is a conflict.
func (r *Registry) claim(name, uuid string, mayBeNew bool) (g *Guest, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	named, known := r.byName[name], r.byUUID[uuid]
	switch {
	case named == nil && known == nil && !mayBeNew:
		return nil, errGone(name) // just now
	case named == nil && known == nil && len(r.byUUID) >= maxGuests:
		return nil, fault.New(fault.NoCapacity, fault.Domain, "there are %d domains already; undefine one", maxGuests)
	case named == nil && known == nil:
		if err := domain.CheckName(name); err != nil {
			return nil, err // one that is there may have such a name of old
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

// unclaim lets a guest go that was claimed for something that failed, if it is
// nothing by itself, and passes the failure on.
func (r *Registry) unclaim(g *Guest, failure error) error {
	if failure == nil {
		return nil
	}
	_ = g.change(r.life, scope.Daemon("forgetting a guest that has ended"), "", func() error { g.forgetIfNothing(); return nil }) // it has gone already, or the daemon stops
	return failure
}

// run sets a guest's loop going. It ends with the registry, or with the guest.
func (r *Registry) run(g *Guest) {
	r.loops.Go(func() { g.loop(r.life) })
}

// remove takes a guest out, if it is still the one that is known by its names.
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

// addName gives a guest a second name, unless that is taken: until the store has the one, nobody
// else is to have the other.
func (r *Registry) addName(g *Guest, name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.byName[name]; other != nil {
		return fault.New(fault.Exists, fault.Domain, "domain with name '%s' already exists", name)
	}
	r.byName[name] = g
	return nil
}

// dropName takes one of two names of a guest away.
func (r *Registry) dropName(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byName, name)
}

// newID gives the next ID of a running guest. IDs count up for the life of the
// daemon and are never used twice, whatever adopted guests brought along.
func (r *Registry) newID() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastID++
	return r.lastID
}

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

// gauges gives those of the guests that run, in no order.
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
