package authz

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

const shared = `
version: 1
rules:
  - name: builders
    who: user:1002
    may: [read, define, change]
    guests: build-*
    at most: {guests: 3, memory: 4GiB, vcpus: 8, interfaces: 10}
  - name: testers
    who: user:1002
    may: [read, define]
    guests: test-*
    at most: {guests: 1}
  - name: owners
    who: user:1004
    may: networks
    networks: n-*
  - name: administrators
    who: user:1005
    may: all
  - name: makers
    who: user:1003
    may: [read, define]
    guests: build-*
`

// sized is the definition of a guest of a given size.
func sized(name string, memory uint64, vcpus uint) *domain.Definition {
	return &domain.Definition{Name: name, Memory: memory, VCPUs: domain.VCPUs{Max: vcpus, Current: 1}}
}

func isThere(def *domain.Definition) fleet.Member {
	return fleet.Member{View: &guest.View{Name: def.Name, UUID: "uuid of " + def.Name, Persistent: true, Inactive: def}}
}

func threaded(def *domain.Definition, threads uint) *domain.Definition {
	def.IOThreads = threads
	return def
}

// plugged adds interfaces with these numbers of queues.
func plugged(def *domain.Definition, queues ...uint) *domain.Definition {
	for _, n := range queues {
		def.Devices.NICs = append(def.Devices.NICs, &device.NIC{Queues: n})
	}
	return def
}

// drawn adds a graphics adapter with memory in KiB.
func drawn(def *domain.Definition, ram, vram uint) *domain.Definition {
	def.Devices.Videos = []*device.Video{{Model: "qxl", RAM: ram, VRAM64: vram}}
	return def
}

// writtenOf returns the size of a definition; here it is that of its description.
func writtenOf(def *domain.Definition) uint64 { return uint64(len(def.Description)) }

// sharing makes an Authorizer with these guests.
func sharing(t *testing.T, there ...*domain.Definition) *Authorizer {
	t.Helper()
	rules, err := ParseRules("access.yaml", []byte(shared))
	if err != nil {
		t.Fatal(err)
	}
	g := &Authorizer{Config: Config{Guests: &guest.Registry{}}}
	g.rules.Store(rules)
	g.reserved.existing = func(like Resource) (all []objectUsage) {
		for _, def := range there {
			all = append(all, objectUsage{GuestResource(isThere(def)), "uuid of " + def.Name, usageOfGuest(writtenOf(def), def)})
		}
		return all
	}
	return g
}

// wants makes one guest in a call that lasts until the test ends.
func wants(t *testing.T, g *Authorizer, uid uint32, v Permission, def *domain.Definition) error {
	taking := &reservation{authorizer: g, principal: user1(uid), quotaPermission: v}
	t.Cleanup(taking.end)
	return taking.ReserveGuest("uuid of "+def.Name, def, writtenOf(def))
}

// A rule's bounds hold for the sum of all guests that it covers, whichever client made them.
//
// Promise: A12
func TestQuota_Guests(t *testing.T) {
	const gib = 1 << 30
	there := []*domain.Definition{sized("build-1", 2*gib, 4), plugged(sized("build-2", gib, 2), 0, 4), sized("db-1", 64*gib, 64)}
	for _, c := range []struct {
		what string
		def  *domain.Definition
		uid  uint32
		verb Permission
		full string // empty: there is room
	}{
		{"one more", sized("build-3", gib, 2), 1002, Define, ""},
		{"one that is too large", sized("build-3", 2*gib, 2), 1002, Define, "at most 4 GiB of memory together; this one takes 2 GiB of memory and the others have 3 GiB of memory"},
		{"one of too many processors", sized("build-3", gib, 3), 1002, Define, "at most 8 vCPUs together; this one takes 3 vCPUs and the others have 6 vCPUs"},
		{"one without end", sized("build-3", 1<<63, 2), 1002, Define, "at most 4 GiB"},
		{"one of threads alone", threaded(sized("build-3", gib, 1), 3), 1002, Define, "at most 8 vCPUs together; this one takes 3 vCPUs"},
		{"one of graphics, as many have", drawn(sized("build-3", gib, 2), 128<<10, 64<<10), 1002, Define, ""},
		{"one of graphics alone", drawn(sized("build-3", 1024, 1), 512<<10, 1<<20), 1002, Define, "at most 4 GiB"},
		{"one of more graphics than there are", drawn(sized("build-3", 1024, 1), 1<<63, 1<<63), 1002, Define, "at most 4 GiB"},
		{"one of as many interfaces as are left", plugged(sized("build-3", gib, 1), 1, 0, 3), 1002, Define, ""},
		{"one of too many interfaces", plugged(sized("build-3", gib, 1), 0, 0, 0, 0, 0, 0), 1002, Define, "at most 10 interfaces together; this one takes 6 interfaces and the others have 5 interfaces"},
		{"one of too many queues", plugged(sized("build-3", gib, 1), 1<<63, 1<<63), 1002, Define, "at most 10 interfaces"},
		{"one that grows within the bound", sized("build-2", 2*gib, 2), 1002, Change, ""},
		{"one that grows beyond it", sized("build-2", 2*gib+1024, 2), 1002, Change, "the others have 2 GiB"},
		{"one of another rule", sized("test-1", 64*gib, 64), 1002, Define, ""},
		{"who has a rule without bounds", sized("build-9", 64*gib, 64), 1003, Define, ""},
		{"a right that no rule gives", sized("db-2", gib, 1), 1002, Define, ""}, // another check refuses it
	} {
		err := wants(t, sharing(t, there...), c.uid, c.verb, c.def)
		switch {
		case c.full == "" && err != nil:
			t.Errorf("%s: %v", c.what, err)
		case c.full != "" && (!fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), c.full) || !strings.Contains(err.Error(), `rule "builders"`)):
			t.Errorf("%s: got %v, want something with %q", c.what, err, c.full)
		}
	}
	there = append(there, sized("build-3", 1024, 1))
	if err := wants(t, sharing(t, there...), 1002, Define, sized("build-4", 1024, 1)); err == nil || !strings.Contains(err.Error(), "at most 3 guests together; this one takes 1 guest and the others have 3 guests") {
		t.Errorf("a fourth: %v", err)
	}
}

// The bytes of stored definitions are bounded even by a rule that does not mention them: the daemon holds all
// of them in memory.
//
// Promise: A12
func TestQuota_BytesOfDefinitions(t *testing.T) {
	long := func(name string, bytes int) *domain.Definition {
		def := sized(name, 1024, 1)
		def.Description = strings.Repeat("x", bytes)
		return def
	}
	const mib = 1 << 20
	g := sharing(t, long("build-1", 60*mib), long("other", 60*mib))
	for bytes, full := range map[int]bool{4 * mib: false, 4*mib + 1: true} {
		err := wants(t, g, 1003, Define, long("build-2", bytes))
		if full != fault.Is(err, fault.NoCapacity) || full && !strings.Contains(err.Error(), "at most 64 MiB of definitions together") {
			t.Errorf("%d bytes more: %v", bytes, err)
		}
	}
	rules, err := ParseRules("access.yaml", []byte(strings.Replace(shared, "guests: 3,", "definitions: 61MiB,", 1)))
	if err != nil {
		t.Fatal(err)
	}
	g.rules.Store(rules)
	if err := wants(t, g, 1002, Define, long("build-2", 2*mib)); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("more than the rule says: %v", err)
	}
	if err := wants(t, g, 1005, Define, long("build-2", 65*mib)); err != nil {
		t.Errorf("who may do everything: %v", err)
	}
	g.reserved.existing = func(Resource) []objectUsage {
		return []objectUsage{usageOfObject(Resource{Kind: Network, Name: "n-1", definitionBytes: 60 * mib})}
	}
	sc, done := g.Scope(user1(1004), Networks)
	defer done()
	if err := g.ReserveNew(sc, Networks, Resource{Kind: Network, Name: "n-2", definitionBytes: 8 * mib}); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("a network: %v", err)
	}
}

// Networks, pools and volumes are counted separately, and volumes across all pools of the rule.
//
// Promise: A12
func TestQuota_NetworksPoolsVolumes(t *testing.T) {
	rules, err := ParseRules("access.yaml", []byte(`
version: 1
rules:
  - {name: owners, who: "user:1003", may: [networks, pools, volumes], networks: "n-*", pools: "p-*", at most: {networks: 2, pools: 2, volumes: 3}}
`))
	if err != nil {
		t.Fatal(err)
	}
	network, pool := func(name string) Resource { return Resource{Kind: Network, Name: name} }, func(name string) Resource { return Resource{Kind: Pool, Name: name} }
	of := func(pool, name string) Resource { return Resource{Kind: Pool, Name: pool, Part: name} }
	g := &Authorizer{Config: Config{Guests: &guest.Registry{}}}
	g.rules.Store(rules)
	g.reserved.existing = func(like Resource) (all []objectUsage) {
		for _, o := range []Resource{network("n-1"), network("other"), pool("p-1"), pool("other"), of("p-1", "a"), of("p-2", "b"), of("other", "c")} {
			if o.Kind == like.Kind && (o.Part == "") == (like.Part == "") {
				all = append(all, usageOfObject(o))
			}
		}
		return all
	}
	sc, done := g.Scope(user1(1003), Networks)
	defer done()
	for _, c := range []struct {
		verb   Permission
		object Resource
		full   string
	}{
		{Networks, network("n-1"), ""}, // exists
		{Networks, network("n-2"), ""},
		{Networks, network("n-3"), "at most 2 networks together; this one takes 1 network and the others have 2 networks"},
		{Pools, pool("p-2"), ""},
		{Pools, pool("p-3"), "at most 2 pools together"},
	} {
		if err := g.ReserveNew(sc, c.verb, c.object); c.full == "" && err != nil || c.full != "" && (!fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), c.full)) {
			t.Errorf("%s: got %v, want %q", c.object, err, c.full)
		}
	}
	taking := &reservation{authorizer: g, principal: user1(1003)}
	defer taking.end()
	if err := taking.ReserveVolume("p-2", "c"); err != nil {
		t.Errorf("a third volume: %v", err)
	}
	if err := taking.ReserveVolume("p-1", "c"); !fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), "at most 3 volumes together") {
		t.Errorf("a fourth volume: %v", err)
	}
}

// A guest above its rule's bounds, for instance after they were lowered, may start and shrink but not grow.
//
// Promise: A12
func TestQuota_GuestAboveLoweredBound(t *testing.T) {
	const gib = 1 << 30
	g := sharing(t, sized("build-1", 8*gib, 4))
	for _, has := range []uint64{8 * gib, 6 * gib} {
		if err := wants(t, g, 1002, Define, sized("build-1", has, 4)); err != nil {
			t.Errorf("%d GiB: %v", has/gib, err)
		}
	}
	if err := wants(t, g, 1002, Define, sized("build-1", 9*gib, 4)); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("growing: %v", err)
	}
}

// Concurrent calls count each other's guests before they exist. What a call reserved and did not make is free
// when the call ends.
//
// Promise: A12
func TestQuota_ConcurrentCalls(t *testing.T) {
	g := sharing(t)
	var calls sync.WaitGroup
	var made atomic.Int32
	for i := range 32 {
		calls.Go(func() {
			if wants(t, g, 1002, Define, sized(fmt.Sprint("build-", i), 1024, 1)) == nil {
				made.Add(1)
			}
		})
	}
	calls.Wait()
	if made.Load() != 3 {
		t.Errorf("%d guests at once, of at most 3", made.Load())
	}
	one := &reservation{authorizer: sharing(t), principal: user1(1002), quotaPermission: Define}
	if err := one.ReserveGuest("a", sized("test-1", 1, 1), 0); err != nil {
		t.Fatal(err)
	}
	if err := wants(t, one.authorizer, 1002, Define, sized("test-2", 1, 1)); err == nil {
		t.Error("two guests of at most one")
	}
	one.end()
	if err := wants(t, one.authorizer, 1002, Define, sized("test-2", 1, 1)); err != nil {
		t.Errorf("a call that has ended still counts: %v", err)
	}
	if err := one.ReserveGuest("a", sized("test-1", 1, 1), 0); !fault.Is(err, fault.Aborted) {
		t.Errorf("a call that has ended takes more: %v", err)
	}
}
