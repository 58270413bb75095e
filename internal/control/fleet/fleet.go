package fleet

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// Config is what a fleet works with. All of it is needed, but for Images.
type Config struct {
	Guests *guest.Registry
	Pools  *volume.Pools
	Events *event.Log
	Log    *slog.Logger
	// Images is the folder of the pool that MakePool makes; empty: it makes none.
	Images string
}

// Fleet is all guests of a daemon, for work on sets of them.
type Fleet struct {
	guests *guest.Registry
	pools  *volume.Pools
	store  *store.Store
	events *event.Log
	log    *slog.Logger
	images string

	// poolTurn holds one token, of whoever makes the default pool.
	poolTurn chan struct{}

	// read keeps the marks that were read, by the guest's UUID.
	mu   sync.Mutex
	read map[string]readOnce
	// busy are the tiles that are being made or removed (alone), and how many calls clone guests of others, by name.
	busy map[string]int

	ops    *operation.Set[*Fleet]
	barred error // why no tiles or clones are made or removed; nil: they are
	stop   context.CancelCauseFunc
}

// readOnce is what was read of one guest's metadata. The text is that of the
// definition, shared, so that comparing it again is comparing a pointer.
type readOnce struct {
	metadata string
	marks    *Marks
	problem  string
}

// Open makes a fleet of a registry's guests. What an earlier daemon did not finish waits
// for Recover.
func Open(c Config) *Fleet {
	f := &Fleet{
		guests: c.Guests, pools: c.Pools, store: c.Guests.Store, events: c.Events, log: c.Log, images: c.Images,
		poolTurn: make(chan struct{}, 1), read: map[string]readOnce{}, busy: map[string]int{},
	}
	f.openOperations()
	return f
}

// Member is a guest as part of a set, as of one moment.
type Member struct {
	Guest *guest.Guest
	View  *guest.View
	// Labels and the rest of the marks are shared: they are not to be changed.
	Labels Labels
	Marks  *Marks
	// Problem says why the marks cannot be read; they count as none then.
	Problem string
}

// Select gives the guests that any of the selectors chooses, by name.
func (f *Fleet) Select(selectors []Selector) []Member {
	chooses := f.chooser(selectors)
	all := f.All()
	chosen := all[:0]
	for _, m := range all {
		if chooses(m) {
			chosen = append(chosen, m)
		}
	}
	return chosen
}

// Chooses says whether any of the selectors chooses a guest.
func (f *Fleet) Chooses(selectors []Selector, m Member) bool { return f.chooser(selectors)(m) }

// chooser gives what says whether any of the selectors chooses a guest, by the
// pools as they are now.
func (f *Fleet) chooser(selectors []Selector) func(Member) bool {
	var poolsOf func(string) []string
	if slices.ContainsFunc(selectors, Selector.asksPools) {
		poolsOf = f.poolsOf()
	}
	return func(m Member) bool {
		return slices.ContainsFunc(selectors, func(s Selector) bool { return s.matches(m.View, m.Labels, poolsOf) })
	}
}

// All gives everybody, by name. It reads only what has changed since the last time.
func (f *Fleet) All() []Member {
	guests := f.guests.All()
	all := make([]Member, 0, len(guests))
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range guests {
		if m := f.memberLocked(g, g.View()); m.View.Current() != nil || m.View.Quarantined { // else it has gone meanwhile
			all = append(all, m)
		}
	}
	if len(f.read) > 2*len(all)+64 {
		f.forget(all)
	}
	return all
}

// Of gives one guest as part of sets, as it is now.
func (f *Fleet) Of(g *guest.Guest) Member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.memberLocked(g, g.View())
}

func (f *Fleet) memberLocked(g *guest.Guest, v *guest.View) Member {
	m := Member{Guest: g, View: v, Labels: noMarks.Labels, Marks: noMarks}
	d := v.Inactive
	if d == nil {
		d = v.Active
	}
	if d == nil || d.Metadata == "" {
		return m
	}
	r := f.readMarks(v.UUID, d.Metadata)
	m.Labels, m.Marks, m.Problem = r.marks.Labels, r.marks, r.problem
	return m
}

// readMarks reads marks, if they are not those that were read before.
func (f *Fleet) readMarks(uuid, metadata string) readOnce {
	if r, known := f.read[uuid]; known && r.metadata == metadata {
		return r
	}
	r := readOnce{metadata: metadata}
	marks, err := ReadMarks(metadata)
	if r.marks = marks; err != nil {
		r.problem = err.Error()
	}
	f.read[uuid] = r
	return r
}

// forget drops what was read of guests that have gone.
func (f *Fleet) forget(all []Member) {
	kept := make(map[string]readOnce, len(all))
	for _, m := range all {
		if r, known := f.read[m.View.UUID]; known {
			kept[m.View.UUID] = r
		}
	}
	f.read = kept
}

// poolsOf tells in which pools the file of a disk lies, as pools are now. It
// looks at views only.
func (f *Fleet) poolsOf() func(path string) []string {
	byTarget := map[string][]string{}
	for _, p := range f.pools.List() {
		if v := p.View(); v.Type != volume.Disk {
			byTarget[v.Target] = append(byTarget[v.Target], v.Name)
		}
	}
	return func(path string) []string {
		if strings.HasPrefix(path, "/dev/") {
			// Partitions lie beside everything else in /dev: only the volume tells.
			if p, _, err := f.pools.ByPath(path); err == nil {
				return []string{p.Name()}
			}
		}
		return byTarget[filepath.Dir(path)]
	}
}

// named checks that guests which are named outright are there, and that they may be
// seen: of others nobody is told that there are any. Sees is nil for who sees all.
func (f *Fleet) named(selectors []Selector, sees func(Member) bool) error {
	for _, s := range selectors {
		name, is := s.names()
		if !is {
			continue
		}
		g, err := f.guests.ByName(name)
		if err == nil && sees != nil && !sees(f.Of(g)) {
			err = fault.New(fault.NotFound, fault.Domain, "no domain with matching name '%s'", name) // in the words of the others
		}
		if err != nil {
			return fault.Wrap(err, fault.NotFound, fault.Domain, "selector %q", s)
		}
	}
	return nil
}
