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

// Config is the rooms that a fleet uses. All fields but Images are required.
type Config struct {
	Guests *guest.Registry
	Pools  *volume.Pools
	Events *event.Log
	Log    *slog.Logger
	// Images is the folder for the pool that MakePool makes; empty: MakePool makes none.
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

	// poolTurn holds one token: only one caller makes the default pool.
	poolTurn chan struct{}

	// read caches the parsed marks by the guest's UUID.
	mu          sync.Mutex
	parsedMarks map[string]parsedMarks
	// tileUsers are the tiles that are being made or removed (alone), or the number of calls that clone their
	// guests, by tile name.
	tileUsers map[string]int

	ops     *operation.Set[*Fleet]
	blocked error // why making and removing tiles and clones is refused; nil: it is not
	stop    context.CancelCauseFunc
}

// parsedMarks is the parsed metadata of one guest. It shares the text of the definition, so an unchanged text
// compares by pointer.
type parsedMarks struct {
	metadata string
	marks    *Marks
	problem  string
}

// Open makes a fleet of a registry's guests. Recover handles what an earlier daemon left unfinished.
func Open(c Config) *Fleet {
	f := &Fleet{
		guests: c.Guests, pools: c.Pools, store: c.Guests.Store, events: c.Events, log: c.Log, images: c.Images,
		poolTurn: make(chan struct{}, 1), parsedMarks: map[string]parsedMarks{}, tileUsers: map[string]int{},
	}
	f.openOperations()
	return f
}

// Member is a guest as part of a set, at one moment.
type Member struct {
	Guest *guest.Guest
	View  *guest.View
	// Labels and the other marks are shared: do not change them.
	Labels Labels
	Marks  *Marks
	// Problem says why the marks cannot be parsed; they are then treated as empty.
	Problem string
}

// Select returns the guests that match any of the selectors, by name.
func (f *Fleet) Select(selectors []Selector) []Member {
	chooses := f.matcher(selectors)
	all := f.All()
	chosen := all[:0]
	for _, m := range all {
		if chooses(m) {
			chosen = append(chosen, m)
		}
	}
	return chosen
}

// Matches says whether a guest matches any of the selectors.
func (f *Fleet) Matches(selectors []Selector, m Member) bool { return f.matcher(selectors)(m) }

// matcher returns a function that matches guests against the selectors, with the pools as they are now.
func (f *Fleet) matcher(selectors []Selector) func(Member) bool {
	var poolsOf func(string) []string
	if slices.ContainsFunc(selectors, Selector.needsPools) {
		poolsOf = f.poolsOf()
	}
	return func(m Member) bool {
		return slices.ContainsFunc(selectors, func(s Selector) bool { return s.matches(m.View, m.Labels, poolsOf) })
	}
}

// All returns every guest, by name. It parses only marks that have changed since the last call.
func (f *Fleet) All() []Member {
	guests := f.guests.All()
	all := make([]Member, 0, len(guests))
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range guests {
		if m := f.memberLocked(g, g.View()); m.View.Current() != nil || m.View.Quarantined { // else it was removed meanwhile
			all = append(all, m)
		}
	}
	if len(f.parsedMarks) > 2*len(all)+64 {
		f.dropMarks(all)
	}
	return all
}

// MemberOf returns one guest as a member, as it is now.
func (f *Fleet) MemberOf(g *guest.Guest) Member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.memberLocked(g, g.View())
}

func (f *Fleet) memberLocked(g *guest.Guest, v *guest.View) Member {
	m := Member{Guest: g, View: v, Labels: emptyMarks.Labels, Marks: emptyMarks}
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

// readMarks parses marks unless the cache has them.
func (f *Fleet) readMarks(uuid, metadata string) parsedMarks {
	if r, known := f.parsedMarks[uuid]; known && r.metadata == metadata {
		return r
	}
	r := parsedMarks{metadata: metadata}
	marks, err := ReadMarks(metadata)
	if r.marks = marks; err != nil {
		r.problem = err.Error()
	}
	f.parsedMarks[uuid] = r
	return r
}

// dropMarks drops the cached marks of guests that were removed.
func (f *Fleet) dropMarks(all []Member) {
	kept := make(map[string]parsedMarks, len(all))
	for _, m := range all {
		if r, known := f.parsedMarks[m.View.UUID]; known {
			kept[m.View.UUID] = r
		}
	}
	f.parsedMarks = kept
}

// poolsOf returns a function that lists the pools which contain a disk's file. It reads only the pools' views.
func (f *Fleet) poolsOf() func(path string) []string {
	byTarget := map[string][]string{}
	for _, p := range f.pools.List() {
		if v := p.View(); v.Type != volume.Disk {
			byTarget[v.Target] = append(byTarget[v.Target], v.Name)
		}
	}
	return func(path string) []string {
		if strings.HasPrefix(path, "/dev/") {
			// Partitions share /dev with all other devices, so the pool's volumes decide.
			if p, _, err := f.pools.ByPath(path); err == nil {
				return []string{p.Name()}
			}
		}
		return byTarget[filepath.Dir(path)]
	}
}

// checkNamed checks that guests which selectors name exactly exist and are visible to the client. The error for an
// invisible guest does not reveal that it exists. Sees is nil for a client that sees all.
func (f *Fleet) checkNamed(selectors []Selector, sees func(Member) bool) error {
	for _, s := range selectors {
		name, is := s.exactName()
		if !is {
			continue
		}
		g, err := f.guests.ByName(name)
		if err == nil && sees != nil && !sees(f.MemberOf(g)) {
			err = fault.New(fault.NotFound, fault.Domain, "no domain with matching name '%s'", name) // the text of libvirt's own error
		}
		if err != nil {
			return fault.Wrap(err, fault.NotFound, fault.Domain, "selector %q", s)
		}
	}
	return nil
}
