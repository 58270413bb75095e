package guest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// A damaged or restored store may have lost definitions. They can be found in two other places: the managed
// save images, and the run directories of running guests, which also record whether a guest was undefined.
// The images are searched only if the store is not sound: otherwise a guest without a record was undefined.

// recoverFromSaves defines the guests of managed save images without a record. It runs before the loops start.
func recoverFromSaves(r *machine.Registry) {
	if r.Store.Complete() {
		return
	}
	images, err := filepath.Glob(filepath.Join(r.SaveDir(), "*.save"))
	if err != nil {
		return // only a malformed pattern fails
	}
	for _, path := range images {
		uuid := strings.TrimSuffix(filepath.Base(path), ".save")
		_, err := os.Lstat(filepath.Join(r.RunDir, uuid))
		if r.GuestsByUUID[uuid] != nil || err == nil { // it is known, or will be adopted
			continue
		}
		image, err := savestate.OpenSavedNoWait(r.Life, r, path, savestate.SaveOptions{})
		if err != nil {
			r.Log.Error("managed save image without a guest cannot be read; image kept", "image", path, "error", err)
			continue
		}
		image.Close()
		if image.Def.UUID != uuid || r.GuestsByName[image.Def.Name] != nil {
			r.Log.Error("managed save image fits no guest; image kept", "image", path, "domain", image.Def.Name)
			continue
		}
		g := newGuest(r, image.Def.Name, uuid)
		r.GuestsByName[image.Def.Name], r.GuestsByUUID[uuid] = g, g
		storeRecovered(g, image.Def, image.XML, true)
		g.Publish()
	}
}

// recoverLostGuest returns the guest of a run record that was persistent and has lost its definition. Nil: no
// definition could be made from the record.
func recoverLostGuest(r *machine.Registry, rec *machine.RunRecord, def *domain.Definition) *machine.Guest {
	g := adoptedGuest(r, rec)
	if recoverFromInstance(g, rec, def); g.Inactive != nil {
		return g
	}
	r.Remove(g)
	return nil
}

// recoverFromInstance defines a persistent guest again from its run record, if the store has lost it.
func recoverFromInstance(g *machine.Guest, rec *machine.RunRecord, def *domain.Definition) {
	if g.Inactive != nil || !rec.State.Persistent {
		return
	}
	var kept any
	if g.Reg.Store.Complete() && !fault.Is(g.Reg.Store.Get(machine.Domains, g.UUID, &kept), fault.NotFound) {
		return // it is there, even if this daemon cannot read it
	}
	if other, err := g.Reg.ByName(rec.Name); err == nil && other != g {
		g.Log.Error("store has lost the definition, and another guest has the name; guest is transient now")
		return
	}
	text, err := domainxml.Format(def, domainxml.Style{Secure: true})
	if err == nil {
		def, err = domainxml.Parse(text, domainxml.Options{})
	}
	if err != nil {
		g.Log.Error("store has lost the definition, and it cannot be made from the running guest; guest is transient now", "error", err)
		return
	}
	storeRecovered(g, def, text, false)
}

// storeRecovered stores a definition that the store has lost.
func storeRecovered(g *machine.Guest, def *domain.Definition, text string, saved bool) {
	g.Log.Error("store has lost the definition; defined again as it ran. Check it: later changes and autostart are lost")
	g.Inactive = def
	g.Record = machine.Record{Name: def.Name, Submitted: text, XML: text, ManagedSave: saved, PathLimits: g.Record.PathLimits}
	g.State.Persistent, g.State.Policy = true, machine.Policy(def)
	if err := g.Store(); err != nil {
		g.Log.Error("cannot store the recovered definition", "error", err)
	}
}
