package machine

import (
	"context"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// KeepShutOff keeps a shut-off guest from being started until release is called, so that its disks can be
// copied. It returns the guest's definition.
func (g *Guest) KeepShutOff(ctx context.Context, sc scope.Scope) (def *domain.Definition, release func(), err error) {
	// It runs as a job, so that no start is in progress. A caller that left early could never release the
	// guest. So the wait does not end with its context; it is bounded in any case.
	asked := ctx
	err = g.Perform(context.WithoutCancel(ctx), sc, "", domain.JobModify, ModifyLimit, func() (Work, error) {
		if asked.Err() != nil {
			return nil, context.Cause(asked)
		}
		if err := g.admitShutOff(); err != nil {
			return nil, err
		}
		g.keptShutOff++
		def = g.Inactive
		return nil, nil
	})
	if err != nil {
		return nil, nil, err
	}
	return def, sync.OnceFunc(func() {
		_ = g.Change(g.Reg.Life, scope.Daemon("the end of keeping a guest still"), "", func() error { g.keptShutOff--; return nil }) // it is gone, or the daemon stops
	}), nil
}

// admitShutOff refuses a guest with disks that are in use, or that are incomplete without the guest's memory.
// It runs in the loop.
func (g *Guest) admitShutOff() error {
	switch {
	case g.Instance != nil || g.Quarantine != "":
		return fault.New(fault.WrongState, fault.Domain, "domain %q is running, so its disks keep changing; shut it down first", g.Record.Name)
	case g.Inactive == nil:
		return fault.New(fault.WrongState, fault.Domain, "domain %q has no persistent definition", g.Record.Name)
	case g.Record.ManagedSave:
		return fault.New(fault.WrongState, fault.Domain,
			"domain %q has a managed save image, so its disks are not in a shut-down state; start it and shut it down, or remove the image (virsh managedsave-remove %s)", g.Record.Name, fault.Word(g.Record.Name))
	}
	return nil
}

// MakeTemplate marks a guest as a template, which is only cloned. It cannot be started: if it wrote to its
// disks, it would destroy the clones on top of them.
func (g *Guest) MakeTemplate(ctx context.Context, sc scope.Scope) error {
	return g.Perform(ctx, sc, "", domain.JobModify, ModifyLimit, func() (Work, error) { return nil, g.setTemplate(true) })
}

// EndTemplate lets a template be started again, if look finds no clones on top of its disks. look runs
// within the guest's job, so that no clone is begun at the same time.
func (g *Guest) EndTemplate(ctx context.Context, sc scope.Scope, look func(context.Context) error) error {
	return g.Perform(ctx, sc, "", domain.JobModify, ModifyLimit, func() (Work, error) {
		if !g.Record.Template {
			return nil, nil
		}
		if g.keptShutOff > 0 {
			return nil, fault.New(fault.Busy, fault.Domain, "domain %q is being cloned, and a clone may depend on its disks; try again when that is done", g.Record.Name)
		}
		return func(ctx context.Context, sc scope.Scope) (Settle, error) {
			if err := look(ctx); err != nil {
				return nil, err
			}
			return func() error { return g.setTemplate(false) }, nil
		}, nil
	})
}

// setTemplate stores, in the loop, whether a guest is a template.
func (g *Guest) setTemplate(on bool) error {
	if g.Record.Template == on {
		return nil
	}
	if err := g.admitShutOff(); err != nil {
		return err
	}
	g.Record.Template = on
	if err := g.Store(); err != nil {
		g.Record.Template = !on
		return err
	}
	g.Publish()
	return nil
}

// AdmitRun refuses to run a guest while its disks must not change. If only the directory of an earlier
// instance has the state of the managed save image, it stores that state: the start removes the directory.
// It runs in the loop.
func (g *Guest) AdmitRun() error {
	switch {
	case g.Record.Template:
		return fault.New(fault.WrongState, fault.Domain,
			"domain %q is a template: thin clones depend on its disks, and a write would destroy them; clone it, or, when no thin clone is left, run: lodge set %s template=no",
			g.Record.Name, fault.Word(g.Record.Name))
	case g.keptShutOff > 0:
		return fault.New(fault.Busy, fault.Domain, "domain %q is being cloned; start it when that is done", g.Record.Name)
	case g.Unstored != nil:
		return g.Store()
	}
	return nil
}
