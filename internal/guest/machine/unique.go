package machine

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// UniqueKey is a property that no two guests should share: its kind and its value.
type UniqueKey struct{ Kind, Value string }

// UniqueIndex is the index of such properties. Each guest's loop updates its own entry, so that a query costs
// only as much as one guest has, however many guests there are.
type UniqueIndex struct {
	mu     sync.Mutex
	byUUID map[string][]UniqueKey // by UUID
	byKey  map[UniqueKey][]string // UUIDs
}

// NewUniqueIndex makes an empty index.
func NewUniqueIndex() *UniqueIndex {
	return &UniqueIndex{byUUID: map[string][]UniqueKey{}, byKey: map[UniqueKey][]string{}}
}

// Set replaces the keys of a guest. Nil: it has none.
func (t *UniqueIndex) Set(uuid string, now []UniqueKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range t.byUUID[uuid] {
		if t.byKey[one] = slices.DeleteFunc(t.byKey[one], func(u string) bool { return u == uuid }); len(t.byKey[one]) == 0 {
			delete(t.byKey, one)
		}
	}
	delete(t.byUUID, uuid)
	if len(now) > 0 {
		t.byUUID[uuid] = now
	}
	for _, one := range now {
		t.byKey[one] = append(t.byKey[one], uuid)
	}
}

// isTaken reports whether any guest has the key.
func (t *UniqueIndex) isTaken(one UniqueKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byKey[one]) > 0
}

// Others reports whether a guest other than uuid has the key.
func (t *UniqueIndex) Others(uuid string, one UniqueKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.byKey[one], func(u string) bool { return u != uuid })
}

// sharedKey is a key that a guest shares with others.
type sharedKey struct {
	UniqueKey
	others []string // UUIDs, at most maxNamed
	more   int      // the number of further guests
}

// maxNamed bounds how many guests one message names.
const maxNamed = 3

func (t *UniqueIndex) sharedKeys(uuid string) []sharedKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []sharedKey
	for _, one := range t.byUUID[uuid] {
		others := len(t.byKey[one]) - 1
		if others == 0 {
			continue
		}
		s := sharedKey{UniqueKey: one, more: max(0, others-maxNamed)}
		for _, other := range t.byKey[one] {
			if other != uuid && len(s.others) < maxNamed {
				s.others = append(s.others, other)
			}
		}
		all = append(all, s)
	}
	return all
}

// Clashes returns messages for an administrator about keys that a guest shares with others, and about
// disks with the same serial. Guests that the reader must not see are only counted. A nil sees means that
// the reader sees all.
func (r *Registry) Clashes(v *View, sees func(*Guest) bool) []string {
	var texts []string
	for _, s := range r.UniqueIndex.sharedKeys(v.UUID) {
		var names []string
		others := s.more
		for _, uuid := range s.others {
			other, err := r.ByUUID(uuid)
			switch {
			case err != nil: // it is gone since
			case sees == nil || sees(other):
				names = append(names, fmt.Sprintf("%q", other.Name()))
			default:
				others++
			}
		}
		slices.Sort(names)
		if others > 0 {
			names = append(names, fmt.Sprintf("%d more", others))
		}
		if len(names) > 0 {
			texts = append(texts, fmt.Sprintf("%sshares %s %s with domain %s", Tainted, s.Kind, s.Value, strings.Join(names, ", ")))
		}
	}
	if d := v.Current(); d != nil {
		texts = append(texts, duplicateSerials(d)...)
	}
	return texts
}

// Advice returns all messages for an administrator about a guest: those of its view, and the clashes.
func (r *Registry) Advice(v *View, sees func(*Guest) bool) []string {
	return append(slices.Clip(v.Messages), r.Clashes(v, sees)...)
}

// MACTaken reports whether any guest has a MAC address.
func (r *Registry) MACTaken(mac string) bool { return r.UniqueIndex.isTaken(UniqueKey{macKey, mac}) }

const (
	macKey = "MAC address"
	// NVRAMKey is a file of UEFI variables.
	NVRAMKey = "UEFI variables"
)

// uniqueKeys returns the keys of definitions, each once.
func (r *Registry) uniqueKeys(definitions ...*domain.Definition) []UniqueKey {
	var all []UniqueKey
	for _, d := range definitions {
		if d != nil {
			all = append(all, r.identityKeys(d)...)
			all = append(all, r.exclusiveKeys(d)...)
		}
	}
	slices.SortFunc(all, func(a, b UniqueKey) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Value, b.Value)) })
	return slices.DeleteFunc(slices.Compact(all), func(t UniqueKey) bool { return t.Value == "" })
}

// identityKeys returns the keys that tell guests apart.
func (r *Registry) identityKeys(d *domain.Definition) []UniqueKey {
	var all []UniqueKey
	for _, n := range d.Devices.NICs {
		all = append(all, UniqueKey{macKey, n.MAC})
	}
	if d.GenID != "auto" {
		all = append(all, UniqueKey{"generation ID", d.GenID})
	}
	if v := d.Devices.VSock; v != nil && v.Auto != device.On && v.CID != 0 {
		all = append(all, UniqueKey{"vsock CID", fmt.Sprint(v.CID)})
	}
	if s := d.SysInfo; s != nil {
		for _, group := range append([][]domain.SysInfoEntry{s.System, s.Chassis}, s.BaseBoards...) {
			for _, e := range group {
				if e.Name == "serial" || e.Name == "uuid" {
					all = append(all, UniqueKey{"SMBIOS " + e.Name, e.Value})
				}
			}
		}
	}
	return all
}

// exclusiveKeys returns the keys that only one guest can use at a time.
func (r *Registry) exclusiveKeys(d *domain.Definition) []UniqueKey {
	all := []UniqueKey{{NVRAMKey, d.OS.NVRAM.Path}}
	for _, disk := range d.Devices.Disks {
		if !disk.ReadOnly && !disk.Shareable && disk.Device != "cdrom" {
			all = append(all, UniqueKey{"writable disk", r.diskPath(disk.Source)})
		}
	}
	for _, g := range d.Devices.Graphics {
		if g.AutoPort != device.On && g.Port > 0 {
			all = append(all, UniqueKey{g.Type + " port", fmt.Sprint(g.Port)})
		}
	}
	return all
}

// diskPath returns the path behind a disk, also of a volume that does not exist now. It reads views only, so
// it does not block.
func (r *Registry) diskPath(s *device.DiskSource) string {
	if s == nil || s.Volume == nil {
		return s.Path()
	}
	if p, err := r.Pools.ByName(s.Volume.Pool); err == nil {
		if target := p.View().Target; target != "" {
			return filepath.Join(target, s.Volume.Volume)
		}
	}
	return s.Volume.Pool + "/" + s.Volume.Volume
}

// duplicateSerials returns messages about disks of one guest with the same serial, because the guest uses it
// to tell its disks apart.
func duplicateSerials(d *domain.Definition) []string {
	var texts []string
	bySerial := map[string]string{}
	for _, disk := range d.Devices.Disks {
		if disk.Serial == "" {
			continue
		}
		if before, twice := bySerial[disk.Serial]; twice {
			texts = append(texts, fmt.Sprintf("%sdisks %s and %s have the same serial %s", Tainted, before, disk.Target, disk.Serial))
		}
		bySerial[disk.Serial] = disk.Target
	}
	return texts
}

// updateUniqueIndex updates the index if the guest's definitions have changed. It runs in the loop, or before the
// loop starts.
func (g *Guest) updateUniqueIndex() {
	var active *domain.Definition
	if g.Instance != nil {
		active = g.Instance.Definition
	}
	if now := [2]*domain.Definition{g.Inactive, active}; now != g.indexed {
		g.indexed = now
		g.Reg.UniqueIndex.Set(g.UUID, g.Reg.uniqueKeys(now[:]...))
	}
}
