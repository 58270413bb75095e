package guest

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// undefineKind removes a definition, and then the files that belong to it. The store decides: while it
// still has the guest, all files stay.
var undefineKind = operation.Kind[*machine.Registry]{
	Name: "undefine", Version: 1,
	Steps: []string{"forget", "variables", "tpm"},
	Bind:  func(r *machine.Registry) operation.Work { return &undefinition{reg: r} },
}

// undefinition is the journalled payload of an undefinition.
type undefinition struct {
	Name, UUID string
	// NVRAM is the file of the guest's UEFI variables to remove. Empty: it stays. Held are the folders to
	// which the client that named it is restricted.
	NVRAM string   `json:",omitempty"`
	Held  []string `json:",omitempty"`
	// TPM says that the TPM state is removed, too.
	TPM bool `json:",omitempty"`

	reg *machine.Registry
	op  *operation.Operation // nil: there is nothing to remove beside the definition
	sc  scope.Scope          // where there is no operation

	// The following fields are set only in the daemon that began it.
	guest   *machine.Guest
	options UndefineOptions
	found   string // the file of UEFI variables; empty: none
	tried   bool   // the client was told whether the variables could be removed
}

// Opened implements operation.Opener.
func (u *undefinition) Opened(op *operation.Operation) error {
	u.op = op
	return nil
}

// Ended implements operation.Ender.
func (u *undefinition) Ended() { dropUndefinitions(u.reg, u.UUID) }

// Steps implements operation.Work.
func (u *undefinition) Steps() []operation.Step {
	return []operation.Step{
		{Name: "forget", Effect: operation.Lasting, Decisive: true, Do: u.forget, Probe: u.forgotten},
		{Name: "variables", Effect: operation.Lasting, Do: u.removeVariables},
		{Name: "tpm", Effect: operation.Lasting, Do: u.removeTPM},
	}
}

func uuidObject(uuid string) string { return "uuid/" + uuid }

// newUndefinition makes the operation, and finds the files to remove.
func newUndefinition(ctx context.Context, g *machine.Guest, sc scope.Scope, o UndefineOptions) (*undefinition, error) {
	u := &undefinition{Name: g.Name(), UUID: g.Identity, reg: g.Reg, guest: g, options: o, sc: sc}
	// A user chose the path of the variables, and its file system may hang. So the caller waits for it
	// here, and not the loop.
	var err error
	if u.found, err = nvramFile(ctx, g, sc); err != nil {
		return nil, err
	}
	if o.NVRAM && u.found != "" {
		u.NVRAM, u.Held = u.found, sc.WithNotedFolders(g.View().Fences).FoldersFor(u.found)
	}
	if def := g.View().Inactive; def != nil && !o.KeepTPM && (o.TPM || !launch.KeepsTPM(def)) {
		_, err := os.Stat(provision.TPMState(g.Reg, g.Identity))
		u.TPM = err == nil
	}
	return u, nil
}

// scope is the scope that the operation recorded, or the client's before it begins.
func (u *undefinition) scope() scope.Scope {
	if u.op == nil {
		return u.sc
	}
	return u.op.Scope()
}

// forget removes the definition. It runs as a job, because a start or a save in progress needs the
// definition.
func (u *undefinition) forget(ctx context.Context) error {
	g := u.guest
	err := g.Perform(ctx, u.scope(), lifecycle.Undefine, domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
		return nil, dropDefinition(g, u.options, u.found)
	})
	if err != nil && ctx.Err() != nil { // the loop may still do it
		_ = g.Change(context.WithoutCancel(ctx), u.scope(), "", func() error { return nil })
		if found, _ := u.forgotten(ctx, operation.Nothing); found == operation.Happened {
			return nil
		}
	}
	return err
}

// forgotten implements Probe.
func (u *undefinition) forgotten(context.Context, operation.Gone) (operation.Verdict, error) {
	var kept any
	lost := u.guest == nil && !u.reg.Store.Sound() // the definition may be lost, so all files stay
	if fault.Is(u.reg.Store.Get(machine.Domains, u.UUID, &kept), fault.NotFound) && !lost {
		return operation.Happened, nil
	}
	return operation.Never, nil
}

// another reports whether the UUID belongs to a new guest or another undefinition by now. The files then
// belong to that one.
func (u *undefinition) another() bool {
	if !u.op.Has(uuidObject(u.UUID)) {
		return true
	}
	found, _ := u.forgotten(context.Background(), operation.Nothing)
	return found != operation.Happened
}

// removeVariables removes the file of the UEFI variables, unless another guest uses it. A failure is
// reported to the client. Without a client, or after a restart, it is tried again.
func (u *undefinition) removeVariables(ctx context.Context) error {
	if u.NVRAM == "" || u.another() {
		return nil
	}
	if u.reg.UniqueIndex.Others(u.UUID, machine.UniqueKey{What: machine.NVRAMKey, Value: u.NVRAM}) {
		u.reg.Log.Warn("UEFI variables of an undefined guest are used by another guest; kept", "uuid", u.UUID, "path", u.NVRAM)
		return nil
	}
	err := fsguard.Run(ctx, u.NVRAM, func() error { return machine.RemoveNamed(u.NVRAM, u.Held) })
	asked := u.guest != nil && !u.tried && ctx.Err() == nil
	u.tried = true
	if asked {
		return operation.Final(fault.Wrap(err, machine.Failure(err), fault.Domain,
			"domain %q is undefined, but its UEFI variables were not removed; remove %s yourself", u.Name, u.NVRAM))
	}
	return err
}

// removeTPM removes the TPM state, and the record of left files if there are none. A guest that still runs
// keeps its TPM until it ends.
func (u *undefinition) removeTPM(context.Context) error {
	if u.another() {
		return nil
	}
	g, gone := u.reg.ByUUID(u.UUID)
	if u.TPM && (gone != nil || g.Live.Load() == nil && !g.View().Quarantined) {
		launch.DropTPM(u.reg, u.UUID, u.reg.Log)
	}
	provision.ForgetLeftover(u.reg, u.UUID)
	return nil
}

// undefine runs an undefinition. The caller must hold the lock of the UUID. If there are no files to
// remove, no record is written.
func undefine(ctx context.Context, r *machine.Registry, sc scope.Scope, u *undefinition) error {
	r.Mu.RLock()
	set := r.Undefinitions[u.UUID]
	r.Mu.RUnlock()
	if set == nil && u.NVRAM == "" && !u.TPM {
		return u.forget(ctx)
	}
	if set == nil {
		var err error
		if set, err = openUndefinitions(r, u.UUID, nil); err != nil {
			return err
		}
	}
	op, err := set.Begin(sc, undefineKind.Name, u, operation.Record{Objects: []string{uuidObject(u.UUID)}})
	if err != nil {
		dropUndefinitions(r, u.UUID)
		return err
	}
	return op.Run(ctx)
}

// undefinitionsOwner is the prefix of the owner in the records of undefinitions. The UUID follows it.
const undefinitionsOwner = "undefine-"

// openUndefinitions opens the undefinitions of a UUID: those of its records, or none.
func openUndefinitions(r *machine.Registry, uuid string, records []operation.Record) (*operation.Set[*machine.Registry], error) {
	set, err := operation.Open(operation.Config[*machine.Registry]{
		Owner: r, Name: undefinitionsOwner + uuid, Kinds: operation.Kinds[*machine.Registry]{undefineKind},
		Stored: operation.Stored{Store: r.Store}, Apart: true, Log: r.Log.With("uuid", uuid), Life: r.Life,
		Turn: func(ctx context.Context, do func() error) error {
			leave, err := r.Removing.Lock(ctx, uuid)
			if err != nil {
				return err
			}
			defer leave()
			return do()
		},
	}, records)
	if err != nil {
		return nil, err
	}
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Undefinitions[uuid] = set
	return set, nil
}

// undefinitionSets returns the open sets. A successful retry removes its own.
func undefinitionSets(r *machine.Registry) []*operation.Set[*machine.Registry] {
	r.Mu.RLock()
	defer r.Mu.RUnlock()
	return slices.Collect(maps.Values(r.Undefinitions))
}

// dropUndefinitions forgets a set without operations.
func dropUndefinitions(r *machine.Registry, uuid string) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if set := r.Undefinitions[uuid]; set != nil && len(set.Operations()) == 0 {
		delete(r.Undefinitions, uuid)
	}
}

// recoverUndefinitions completes the undefinitions that an earlier daemon began. It holds the locks of
// their UUIDs, so that no guest is made with one of them before.
func recoverUndefinitions(r *machine.Registry) error {
	all, err := operation.Stored{Store: r.Store}.ReadAll()
	for owner, its := range all {
		uuid, is := strings.CutPrefix(owner, undefinitionsOwner)
		if !is {
			continue
		}
		set, e := openUndefinitions(r, uuid, its.Records)
		if e = errors.Join(its.Damaged, e); e != nil {
			r.Log.Error("cannot read which files of an undefined guest to remove", "uuid", uuid, "error", e)
		}
		if set == nil {
			continue
		}
		leave, e := r.Removing.Lock(r.Life, uuid) // the lock is free at this time
		if e != nil {
			return e
		}
		r.Loops.Go(func() { // a file system may hang
			defer leave()
			ctx, stop := context.WithTimeout(r.Life, machine.ModifyLimit)
			defer stop()
			if err := set.Recover(ctx); err != nil {
				r.Log.Error("cannot settle an interrupted undefinition", "uuid", uuid, "error", err)
			}
		})
	}
	return err
}
