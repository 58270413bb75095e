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

// Config says where Networks store their data and where events go.
type Config struct {
	Data     string // folder for what outlives a reboot of the host
	Run      string // folder for what must not
	Instance string // distinguishes this daemon's firewall table; "" for the default daemon
	// Status is the folder of the files that let programs on the host find guests, see statusWriter; empty: a
	// folder in Data.
	Status string
	Store  *store.Store
	Events *event.Log
	Log    *slog.Logger
}

// recordKind is the record of a definition; its key is the UUID.
var recordKind = store.Kind{Name: "network", Version: 1}

// record is a network's record in the store.
type record struct {
	Submitted    string `json:"submitted"`  // as the client gave it
	Definition   string `json:"definition"` // as understood, in the same format
	Autostart    bool   `json:"autostart"`
	ChosenBridge bool   `json:"chosenBridge"` // the bridge's name is Lodge's choice and may change
	// Followed are the operations that the definition includes the change of.
	Followed []string `json:"followed,omitempty"`
}

// maxNetworks bounds the number of networks: the longest list of libvirt's protocol.
const maxNetworks = 16384

// Networks are all networks of a daemon.
type Networks struct {
	Config
	firewall *hostnet.Firewall
	status   *statusWriter
	boot     string // identity of the host's present boot

	// work is the context of the goroutines that watch services and the firewall; Close ends it.
	work    context.Context
	endWork context.CancelCauseFunc
	workers sync.WaitGroup

	taps, macvtaps atomic.Uint64 // next number to try for a chosen name

	mu     sync.RWMutex // guards the maps, and is never held during slow work
	byUUID map[string]*Network
	byName map[string]*Network
	// leftovers are removed networks with remains that still have to be removed, by UUID.
	leftovers map[string]*Network
}

// Open reads the definitions, adopts running networks, and, at the first start after the host's boot, starts
// the networks with autostart. A network that cannot be adopted or started is logged and left inactive.
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
		byUUID: map[string]*Network{}, byName: map[string]*Network{}, leftovers: map[string]*Network{},
	}
	s.work, s.endWork = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := s.load(); err != nil {
		s.Close()
		return nil, err
	}
	s.dropHalfWritten()
	if watch, err := s.firewall.Watch(); err == nil { // before the first rule is made
		s.workers.Go(func() { s.watchRules(watch) })
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
		s.workers.Go(func() { s.watchForwarding(watch) })
	} else {
		c.Log.Warn("when the host's forwarding is turned off, it is on again with the next daemon only", "error", err)
	}
	s.adoptAll(ctx)
	s.dropLeases()
	s.dropStatus()
	s.autostartOnce(ctx, scope.Daemon("autostart of networks"))
	return s, nil
}

// dropHalfWritten removes temporary files of a killed daemon.
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

// dropLeases removes the leases of networks that are neither defined nor running, unless the store may have
// lost definitions.
func (s *Networks) dropLeases() {
	if !s.Store.Complete() {
		return
	}
	found, _ := filepath.Glob(filepath.Join(s.Data, "*.leases")) // as above
	for _, path := range found {
		id := strings.TrimSuffix(filepath.Base(path), ".leases")
		var kept any
		if _, err := s.ByUUID(id); err == nil || !fault.Is(s.Store.Get(recordKind, id, &kept), fault.NotFound) {
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

// Close releases the running networks, which keep running.
func (s *Networks) Close() {
	s.endWork(fault.New(fault.Aborted, fault.Network, "the daemon is ending"))
	s.workers.Wait()
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range s.byUUID {
		n.ops.Close()
	}
	for _, n := range s.leftovers {
		n.ops.Close()
	}
}

func (s *Networks) load() error {
	return s.Store.Each(recordKind, func(id string, decode func(any) error) error {
		var r record
		if err := decode(&r); err != nil {
			s.Log.Error("cannot read the record of a network; it is left as it is", "uuid", id, "error", err)
			return nil
		}
		d, err := Parse(r.Definition, false)
		if err != nil {
			// One damaged record must not cost all guests their networks.
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

// List returns the networks by name.
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

// Define makes a network or replaces its definition. A running network uses the new definition after its next
// start.
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

// Create makes and starts a network that is removed when it is destroyed. If an inactive network of that name
// and UUID is defined, it is started with this definition.
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

// withNetwork finds or makes the network of a definition, and runs do with the completed definition. A new
// network without a view afterwards is removed again.
func (s *Networks) withNetwork(ctx context.Context, d Definition, do func(n *Network, d *Definition, chosen bool) error) (*Network, error) {
	taken, err := linkNames()
	if err != nil {
		return nil, err
	}
	for {
		n, err := s.register(&d)
		if err != nil {
			return nil, err
		}
		err = n.change(ctx, func() error {
			complete := d
			chosen, err := s.fillIn(n, &complete, taken)
			if err != nil {
				return err
			}
			return do(n, &complete, chosen)
		})
		if errors.Is(err, errGone) && ctx.Err() == nil {
			continue // it was undefined in between
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

// register finds the network of a definition, or adds a new one without a view. It sets the definition's UUID.
func (s *Networks) register(d *Definition) (*Network, error) {
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
	case s.leftovers[d.UUID] != nil:
		return nil, fault.New(fault.Busy, fault.Network, "remains of a removed network with UUID %s cannot be removed yet; this is tried again", d.UUID)
	case byName != nil:
		return nil, fault.New(fault.Exists, fault.Network, "network %q already exists with UUID %s", d.Name, byName.uuid)
	case strings.ContainsFunc(d.Name, unicode.IsControl): // an old network may have such a name
		return nil, fault.New(fault.Invalid, fault.XML, "the network name %q contains a control character", d.Name)
	case len(s.byUUID) >= maxNetworks:
		return nil, fault.New(fault.NoCapacity, fault.Network, "there are already %d networks, the maximum; undefine one", maxNetworks)
	}
	n := s.newNetwork(d.UUID, d.Name)
	s.byUUID[n.uuid], s.byName[n.name] = n, n
	return n, nil
}

func (s *Networks) unregister(n *Network) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(n.ops.Operations()) > 0 {
		s.leftovers[n.uuid] = n
	}
	if s.byUUID[n.uuid] == n {
		delete(s.byUUID, n.uuid)
		delete(s.byName, n.name)
	}
}

// fillIn fills in what the document left open: the network's earlier values, or a free bridge name and a
// MAC. It returns whether Lodge chose the bridge's name, and refuses the name of another network's bridge.
func (s *Networks) fillIn(n *Network, d *Definition, taken map[string]bool) (chosen bool, err error) {
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
	asked, row := d.Bridge.Name, bridgePattern
	if isBridgePattern(asked) {
		if asked == patternOf(before.Bridge.Name) && chosen {
			d.Bridge.Name = before.Bridge.Name
			return true, nil
		}
		asked, row = "", asked
	}
	d.Bridge.Name, err = s.reserveBridge(n, func(used map[string]bool) (string, error) {
		switch {
		case asked == "":
			return freeBridgeName(row, func(name string) bool { return used[name] || taken[name] })
		case used[asked]: // without the other network's name, which this client may not know
			return "", fault.New(fault.Invalid, fault.Config, "another network already uses the bridge name %q; choose another or omit it", asked)
		}
		return asked, nil
	})
	return asked == "" || chosen && asked == before.Bridge.Name, err
}

// reserveBridge lets choose pick a bridge name that no other network uses, and reserves it until the end of the
// verb, when the view has it. The caller has the turn.
func (s *Networks) reserveBridge(n *Network, choose func(used map[string]bool) (string, error)) (name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name, err = choose(s.usedBridges(n)); err == nil {
		n.reservedBridge = name
	}
	return name, err
}

// usedBridges returns the names of the bridges of other networks, present and reserved. The caller holds mu.
func (s *Networks) usedBridges(except *Network) map[string]bool {
	used := make(map[string]bool, len(s.byUUID))
	for _, n := range s.byUUID {
		if n == except {
			continue
		}
		used[n.reservedBridge] = true
		n.addLeftoverBridges(used)
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
	for _, n := range s.leftovers {
		n.addLeftoverBridges(used)
	}
	return used
}
