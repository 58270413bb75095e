package network

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Config says where Networks live and whom they tell.
type Config struct {
	Data     string // folder for what outlives a reboot of the host
	Run      string // folder for what must not
	Instance string // tells this daemon's firewall table from others'; "" for the default daemon
	// Status is the folder of what programs on the host find guests by, see statusWriter; empty: one in Data.
	Status string
	Store  *store.Store
	Events *event.Log
	Log    *slog.Logger
}

// kind is the record of a definition; its key is the UUID.
var kind = store.Kind{Name: "network", Version: 1}

// record is what the store keeps of a network.
type record struct {
	Submitted    string `json:"submitted"`  // as the client gave it
	Definition   string `json:"definition"` // as understood, in the same format
	Autostart    bool   `json:"autostart"`
	ChosenBridge bool   `json:"chosenBridge"` // the bridge's name is Lodge's choice and may change
	// Followed are the operations whose change the definition has.
	Followed []string `json:"followed,omitempty"`
}

// maxNetworks bounds how many networks there may be: the longest list that
// clients take.
const maxNetworks = 16384

// Networks are all networks of a daemon.
type Networks struct {
	Config
	firewall *hostnet.Firewall
	status   *statusWriter
	boot     string // identity of the host's present boot

	// work is what the goroutines that watch services and the firewall live in, until Close.
	work    context.Context
	endWork context.CancelCauseFunc
	workers sync.WaitGroup

	taps, macvtaps atomic.Uint64 // next number to try for a chosen name

	mu     sync.RWMutex // guards the maps, and is never held over anything slow
	byUUID map[string]*Network
	byName map[string]*Network
	// left are networks that have gone and of which something is still to be removed, by UUID.
	left map[string]*Network
}

// Open reads the definitions, adopts what an earlier daemon left running, and
// at the first start after the host's boot starts what is to start by itself.
// A network that cannot be adopted or started is logged and left inactive.
func Open(ctx context.Context, c Config) (*Networks, error) {
	for _, dir := range []string{c.Data, c.Run} {
		// dnsmasq reads and writes here under its own user.
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Network, "cannot make a folder for networks")
		}
	}
	table := "lodge"
	if c.Instance != "" {
		table += "_" + c.Instance
	}
	s := &Networks{
		Config: c, firewall: hostnet.NewFirewall(table), boot: bootID(), status: newStatusWriter(cmp.Or(c.Status, filepath.Join(c.Data, "status"))),
		byUUID: map[string]*Network{}, byName: map[string]*Network{}, left: map[string]*Network{},
	}
	s.work, s.endWork = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := s.load(); err != nil {
		s.Close()
		return nil, err
	}
	s.dropHalfWritten()
	if watch, err := s.firewall.Watch(); err == nil { // before the first rule is made
		s.workers.Go(func() { s.guard(watch) })
	} else {
		c.Log.Warn("firewall rules that another program takes away come back with the next daemon only", "error", err)
	}
	s.workers.Go(s.writeStatus)
	if watch, err := hostnet.WatchFolder(c.Data); err == nil {
		s.workers.Go(func() { s.watchLeases(watch) })
	} else {
		c.Log.Warn("the host's name service learns of guests' addresses when the next guest starts only", "error", err)
	}
	if watch, err := hostnet.WatchForwarding(); err == nil {
		s.workers.Go(func() { s.guardForwarding(watch) })
	} else {
		c.Log.Warn("when the host's forwarding is turned off, it is on again with the next daemon only", "error", err)
	}
	s.adoptAll(ctx)
	s.dropLeases()
	s.dropStatus()
	s.autostartOnce(ctx, scope.Daemon("autostart of networks"))
	return s, nil
}

// dropHalfWritten removes what a daemon that was killed was just writing.
func (s *Networks) dropHalfWritten() {
	for _, half := range []string{
		filepath.Join(s.Run, "*.new"),
		filepath.Join(s.status.folder, "*"+statusSuffix+".new-*"), filepath.Join(s.status.folder, "*"+macsSuffix+".new-*"),
	} {
		found, _ := filepath.Glob(half) // fails for a pattern that is wrong only
		for _, path := range found {
			_ = os.Remove(path)
		}
	}
}

// dropLeases removes the leases of networks that are neither defined nor running, unless the store may
// have lost what defines them.
func (s *Networks) dropLeases() {
	if !s.Store.Sound() {
		return
	}
	found, _ := filepath.Glob(filepath.Join(s.Data, "*.leases")) // as above
	for _, path := range found {
		id := strings.TrimSuffix(filepath.Base(path), ".leases")
		var kept any
		if _, err := s.ByUUID(id); err == nil || !fault.Is(s.Store.Get(kind, id, &kept), fault.NotFound) {
			continue
		}
		_ = os.Remove(path) // or the next daemon does
	}
}

func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(id))
}

// Close lets go of what runs, which runs on.
func (s *Networks) Close() {
	s.endWork(fault.New(fault.Aborted, fault.Network, "the daemon is ending"))
	s.workers.Wait()
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range s.byUUID {
		n.ops.Close()
	}
	for _, n := range s.left {
		n.ops.Close()
	}
}

func (s *Networks) load() error {
	return s.Store.Each(kind, func(id string, decode func(any) error) error {
		var r record
		if err := decode(&r); err != nil {
			s.Log.Error("cannot read the record of a network; it is left as it is", "uuid", id, "error", err)
			return nil
		}
		d, err := Parse(r.Definition, false)
		if err != nil {
			// One bad record must not keep all guests from their networks.
			s.Log.Error("cannot read the definition of a network; it is left out", "uuid", id, "error", err)
			return nil
		}
		n := s.newNetwork(d.UUID, d.Name)
		n.followed = r.Followed
		n.publish(View{Config: &d, Autostart: r.Autostart, submitted: r.Submitted, chosenBridge: r.ChosenBridge})
		s.byUUID[n.uuid], s.byName[n.name] = n, n
		return nil
	})
}

// List gives the networks there are, by name.
func (s *Networks) List() []*Network {
	s.mu.RLock()
	all := make([]*Network, 0, len(s.byUUID))
	for _, n := range s.byUUID {
		if n.View() != nil {
			all = append(all, n)
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(all, func(a, b *Network) int { return cmp.Compare(a.name, b.name) })
	return all
}

// ByName gives the network with a name.
func (s *Networks) ByName(name string) (*Network, error) {
	s.mu.RLock()
	n := s.byName[name]
	s.mu.RUnlock()
	if n == nil || n.View() == nil {
		return nil, fault.New(fault.NotFound, fault.Network, "no network with name %q", name)
	}
	return n, nil
}

// ByUUID gives the network with a UUID (lower case, with dashes).
func (s *Networks) ByUUID(id string) (*Network, error) {
	s.mu.RLock()
	n := s.byUUID[id]
	s.mu.RUnlock()
	if n == nil || n.View() == nil {
		return nil, fault.New(fault.NotFound, fault.Network, "no network with UUID %s", id)
	}
	return n, nil
}

// Define makes a network, or gives an existing one a new definition, which a
// running one takes up when it is started next.
func (s *Networks) Define(ctx context.Context, sc scope.Scope, doc string, strict bool) (*Network, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	d, err := Parse(doc, strict)
	if err != nil {
		return nil, err
	}
	return s.withNetwork(ctx, d, func(n *Network, d *Definition, chosen bool) error {
		return n.define(d, doc, chosen)
	})
}

// Create makes a network that is gone when it is destroyed, and starts it. A
// defined and inactive network of that name and UUID is started with this
// definition instead of its own.
func (s *Networks) Create(ctx context.Context, sc scope.Scope, doc string, strict bool) (*Network, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	d, err := Parse(doc, strict)
	if err != nil {
		return nil, err
	}
	return s.withNetwork(ctx, d, func(n *Network, d *Definition, chosen bool) error {
		if v := n.View(); v != nil && v.Active() {
			return fault.New(fault.WrongState, fault.Network, "network %q is already active", d.Name)
		}
		return n.start(ctx, sc, d, chosen)
	})
}

// withNetwork finds or makes the network that a definition is for and does
// something to it with the definition completed. A new network that this
// leaves without a view is gone again.
func (s *Networks) withNetwork(ctx context.Context, d Definition, do func(n *Network, d *Definition, chosen bool) error) (*Network, error) {
	taken, err := linkNames()
	if err != nil {
		return nil, err
	}
	for {
		n, err := s.claim(&d)
		if err != nil {
			return nil, err
		}
		err = n.change(ctx, func() error {
			complete := d
			chosen, err := s.complete(n, &complete, taken)
			if err != nil {
				return err
			}
			return do(n, &complete, chosen)
		})
		if errors.Is(err, errGone) && ctx.Err() == nil {
			continue // somebody undefined it in between
		}
		return n, err
	}
}

func linkNames() (map[string]bool, error) {
	all, err := hostnet.All()
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool, len(all))
	for _, l := range all {
		names[l.Name] = true
	}
	return names, nil
}

// claim finds the network that a definition is for, or enters a new one that
// has no view yet. The definition has its UUID afterwards.
func (s *Networks) claim(d *Definition) (*Network, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byName := s.byName[d.Name]
	if d.UUID == "" && byName == nil {
		d.UUID = uuid.NewString()
	}
	switch n := s.byUUID[d.UUID]; {
	case d.UUID == "":
		return nil, fault.New(fault.Exists, fault.Network, "network %q already exists with UUID %s", d.Name, byName.uuid)
	case n != nil && n != byName:
		return nil, fault.New(fault.Exists, fault.Network, "network %q is already defined with UUID %s", n.name, n.uuid)
	case n != nil:
		return n, nil
	case s.left[d.UUID] != nil:
		return nil, fault.New(fault.Busy, fault.Network, "of a network with UUID %s that has gone something cannot be removed yet; that is tried again", d.UUID)
	case byName != nil:
		return nil, fault.New(fault.Exists, fault.Network, "network %q already exists with UUID %s", d.Name, byName.uuid)
	case strings.ContainsFunc(d.Name, unicode.IsControl): // one that is there may have such a name of old
		return nil, fault.New(fault.Invalid, fault.XML, "the name %q of a network holds a control character", d.Name)
	case len(s.byUUID) >= maxNetworks:
		return nil, fault.New(fault.NoCapacity, fault.Network, "there are %d networks already; undefine one", maxNetworks)
	}
	n := s.newNetwork(d.UUID, d.Name)
	s.byUUID[n.uuid], s.byName[n.name] = n, n
	return n, nil
}

func (s *Networks) forget(n *Network) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(n.ops.Operations()) > 0 {
		s.left[n.uuid] = n
	}
	if s.byUUID[n.uuid] == n {
		delete(s.byUUID, n.uuid)
		delete(s.byName, n.name)
	}
}

// complete gives a definition what its document left open: what the network
// had before, or a free bridge name and a MAC. It tells whether the bridge's
// name is Lodge's choice, and refuses that of another network.
func (s *Networks) complete(n *Network, d *Definition, taken map[string]bool) (chosen bool, err error) {
	if !d.Managed() {
		return false, nil
	}
	var before Definition
	if v := n.View(); v != nil {
		before, chosen = *v.current(), v.chosenBridge
	}
	if d.MAC == "" {
		if d.MAC = before.MAC; d.MAC == "" {
			d.MAC = RandomMAC()
		}
	}
	if d.Bridge.Name == "" && before.Bridge.Name != "" {
		d.Bridge.Name = before.Bridge.Name
		return chosen, nil
	}
	asked, row := d.Bridge.Name, bridgeRow
	if isBridgeRow(asked) {
		if asked == rowOf(before.Bridge.Name) && chosen {
			d.Bridge.Name = before.Bridge.Name
			return true, nil
		}
		asked, row = "", asked
	}
	d.Bridge.Name, err = s.reserve(n, func(used map[string]bool) (string, error) {
		switch {
		case asked == "":
			return freeBridge(row, func(name string) bool { return used[name] || taken[name] })
		case used[asked]: // by one that is perhaps not for this client to know
			return "", fault.New(fault.Invalid, fault.Config, "another network already uses the bridge name %q; choose another or leave it out", asked)
		}
		return asked, nil
	})
	return asked == "" || chosen && asked == before.Bridge.Name, err
}

// reserve has choose name a network's bridge, by what other networks call theirs, and keeps them from
// that name until the view says it: until the verb is done. It runs with the turn.
func (s *Networks) reserve(n *Network, choose func(used map[string]bool) (string, error)) (name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name, err = choose(s.bridges(n)); err == nil {
		n.reserved = name
	}
	return name, err
}

// bridges gives the names of the bridges that other networks make, or are about to. It runs with mu.
func (s *Networks) bridges(except *Network) map[string]bool {
	used := make(map[string]bool, len(s.byUUID))
	for _, n := range s.byUUID {
		if n == except {
			continue
		}
		used[n.reserved] = true
		n.addLeft(used)
		v := n.View()
		if v == nil {
			continue
		}
		for _, d := range []*Definition{v.Config, v.Live} {
			if d != nil && d.Managed() {
				used[d.Bridge.Name] = true
			}
		}
	}
	for _, n := range s.left {
		n.addLeft(used)
	}
	return used
}
