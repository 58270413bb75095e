package guest

import (
	"context"
	"os"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/mount"
	"github.com/lodge-kvm/lodge/store"
)

// removals is the kind of record that says what goes with a guest that is being
// undefined, by UUID: a daemon that is killed after it has forgotten the guest
// leaves the rest to the next one.
var removals = store.Kind{Name: "removal", Version: 1}

type goods struct {
	// NVRAM is the file of the guest's UEFI variables; empty: it stays. Held are the
	// folders that whoever named it is held to.
	NVRAM string
	Held  []string `json:",omitempty"`
	// TPM says that the state of its TPM goes too.
	TPM bool
}

func (w goods) none() bool { return w.NVRAM == "" && !w.TPM }

// noteRemoval writes down what goes with a definition, if something does.
func (g *Guest) noteRemoval(o UndefineOptions, nvram string, held []string) (what goods, err error) {
	if o.NVRAM && nvram != "" {
		what.NVRAM, what.Held = nvram, held
	}
	if def := g.View().Inactive; def != nil && !o.KeepTPM && (o.TPM || !keepsTPM(def)) {
		_, err := os.Stat(g.reg.tpmState(g.uuid))
		what.TPM = err == nil
	}
	if what.none() {
		return what, g.reg.unsayRemoval(g.uuid)
	}
	return what, g.reg.store.Put(removals, g.uuid, what)
}

// unsayRemoval forgets what an attempt that the store refused amid has left noted: nothing is to go.
func (r *Registry) unsayRemoval(uuid string) error {
	var what goods
	if fault.Is(r.store.Get(removals, uuid, &what), fault.NotFound) {
		return nil
	}
	return r.store.Delete(removals, uuid)
}

func (r *Registry) forgetRemoval(uuid string, what goods) {
	if what.none() {
		return
	}
	r.forgetLeft(uuid)
	if err := r.store.Delete(removals, uuid); err != nil {
		r.log.Error("cannot forget that an undefined guest's files were to be removed", "uuid", uuid, "error", err)
	}
}

// finishRemovals removes what the last daemon did not come to. A guest that is
// still defined was not undefined, and keeps everything.
func (r *Registry) finishRemovals() error {
	all := map[string]goods{}
	err := r.store.Each(removals, func(uuid string, decode func(any) error) error {
		var what goods
		if err := decode(&what); err != nil {
			r.log.Error("cannot read which files of an undefined guest were to be removed", "uuid", uuid, "error", err)
			return nil
		}
		all[uuid] = what
		return nil
	})
	for uuid, what := range all {
		leave, e := r.removing.take(r.life, uuid) // nobody has it yet
		if e != nil {
			return e
		}
		r.loops.Go(func() { // a file system may hang
			defer leave()
			r.finishRemoval(uuid, what)
		})
	}
	return err
}

// finishRemoval removes what goes with a guest if that is undefined, and forgets that.
func (r *Registry) finishRemoval(uuid string, what goods) {
	var kept any
	if !fault.Is(r.store.Get(domains, uuid, &kept), fault.NotFound) {
		r.forgetRemoval(uuid, what)
		return
	}
	ctx, stop := context.WithTimeout(r.life, modifyLimit)
	defer stop()
	if what.NVRAM != "" {
		if err := r.dropVariables(ctx, uuid, what); err != nil {
			r.log.Error("cannot remove the UEFI variables of an undefined guest yet", "path", what.NVRAM, "error", err)
			return
		}
	}
	if _, err := os.Stat(r.guestDir(uuid)); what.TPM && err != nil { // it does not run on
		r.dropTPM(uuid, r.log)
	}
	r.forgetRemoval(uuid, what)
}

// dropVariables removes the file of an undefined guest's UEFI variables, unless another guest has it, too: by a
// definition that was copied, or as it has been defined since.
func (r *Registry) dropVariables(ctx context.Context, uuid string, what goods) error {
	if r.traits.others(uuid, trait{nvramTrait, what.NVRAM}) {
		r.log.Warn("the UEFI variables of an undefined guest are another's, too, and stay", "uuid", uuid, "path", what.NVRAM)
		return nil
	}
	return mount.Run(ctx, what.NVRAM, func() error { return removeNamed(what.NVRAM, what.Held) })
}
