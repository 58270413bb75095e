package guest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// A damaged or restored store may have lost definitions. They can be found in two other places: the managed
// save images, and the run directories of running guests, which also record whether a guest was undefined.
// The images are searched only if the store is not sound: otherwise a guest without a record was undefined.

// findSaved defines the guests of managed save images without a record. It runs before the loops start.
func (r *Registry) findSaved() {
	if r.store.Sound() {
		return
	}
	images, err := filepath.Glob(filepath.Join(r.saveDir(), "*.save"))
	if err != nil {
		return // only a malformed pattern fails
	}
	for _, path := range images {
		uuid := strings.TrimSuffix(filepath.Base(path), ".save")
		_, err := os.Lstat(filepath.Join(r.RunDir, uuid))
		if r.byUUID[uuid] != nil || err == nil { // it is known, or will be adopted
			continue
		}
		image, err := r.openSavedNow(r.life, path, SaveOptions{})
		if err != nil {
			r.log.Error("managed save image without a guest cannot be read; image kept", "image", path, "error", err)
			continue
		}
		image.close()
		if image.def.UUID != uuid || r.byName[image.def.Name] != nil {
			r.log.Error("managed save image fits no guest; image kept", "image", path, "domain", image.def.Name)
			continue
		}
		g := newGuest(r, image.def.Name, uuid)
		r.byName[image.def.Name], r.byUUID[uuid] = g, g
		g.found(image.def, image.xml, true)
		g.publish()
	}
}

// lostWith returns the guest of a run record that was persistent and has lost its definition. Nil: no
// definition could be made from what ran.
func (r *Registry) lostWith(rec *runRecord, def *domain.Definition) *Guest {
	g := r.adopted(rec)
	if g.findRunning(rec, def); g.inactive != nil {
		return g
	}
	r.remove(g)
	return nil
}

// findRunning defines a persistent guest again from its run record, if the store has lost it.
func (g *Guest) findRunning(rec *runRecord, def *domain.Definition) {
	if g.inactive != nil || !rec.State.Persistent {
		return
	}
	var kept any
	if g.reg.store.Sound() && !fault.Is(g.reg.store.Get(domains, g.uuid, &kept), fault.NotFound) {
		return // it is there, even if this daemon cannot read it
	}
	if other, err := g.reg.ByName(rec.Name); err == nil && other != g {
		g.log.Error("store has lost the definition, and another guest has the name; guest is transient now")
		return
	}
	text, err := domainxml.Format(def, domainxml.Style{Secure: true})
	if err == nil {
		def, err = domainxml.Parse(text, domainxml.Options{})
	}
	if err != nil {
		g.log.Error("store has lost the definition, and it cannot be made from the running guest; guest is transient now", "error", err)
		return
	}
	g.found(def, text, false)
}

// found stores a definition that the store has lost.
func (g *Guest) found(def *domain.Definition, text string, saved bool) {
	g.log.Error("store has lost the definition; defined again as it ran. Check it: later changes and autostart are lost")
	g.inactive = def
	g.record = record{Name: def.Name, Submitted: text, XML: text, ManagedSave: saved, Fences: g.record.Fences}
	g.state.Persistent, g.state.Policy = true, policy(def)
	if err := g.keep(); err != nil {
		g.log.Error("cannot store the recovered definition", "error", err)
	}
}
