package hotplug

import (
	"context"
	"slices"
	"strconv"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// IOThreadKind adds an iothread to a running guest. The record decides: the addition counts once the new
// thread has its limits and its CPUs. Until then it is undone.
var IOThreadKind = operation.Kind[*machine.Instance]{
	Name: "iothread", Version: 1, Class: operation.Change,
	Steps: []string{"add", "settle", "define"}, Undo: []string{"add"},
	Bind: func(r *machine.Instance) operation.Work { return &IOThreadOp{r: r} },
}

// IOThreadOp is the journalled payload.
type IOThreadOp struct {
	ID     uint // the ID of the new iothread
	Config bool `json:",omitempty"` // add it to the stored definition, too

	r  *machine.Instance
	op *operation.Operation
}

// Steps implements operation.Work.
func (a *IOThreadOp) Steps() []operation.Step {
	return []operation.Step{
		{Name: "add", Effect: operation.Process, Do: a.add, Undo: a.remove},
		{Name: "settle", Effect: operation.Process, Decisive: true, Do: a.settle},
		{Name: "define", Effect: operation.Process, Do: a.define},
	}
}

// Opened implements operation.Opener.
func (a *IOThreadOp) Opened(op *operation.Operation) error {
	a.op = op
	if a.ID == 0 || a.ID > domainxml.MaxIOThreads {
		return fault.New(fault.Invalid, fault.Domain, "an iothread cannot have the ID %d", a.ID)
	}
	return nil
}

// AddIOThread adds an iothread. Its ID must be the one after the domain's last.
func AddIOThread(ctx context.Context, g *machine.Guest, sc scope.Scope, id uint, a machine.Affect) error {
	return edit(ctx, g, sc, a, func() (*domain.Definition, error) {
		return withIOThread(g.Inactive, id)
	}, func(config *domain.Definition) (machine.Work, error) {
		r := g.Instance
		after, err := withIOThread(r.Definition, id)
		if err != nil {
			return nil, err
		}
		if err := g.ReserveQuota(sc, after); err != nil {
			return nil, err
		}
		return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
			if _, err := r.Monitor(); err != nil {
				return nil, err
			}
			w := &IOThreadOp{ID: id, Config: config != nil, r: r}
			return nil, r.Perform(ctx, sc, IOThreadKind.Name, w, w.name())
		}, nil
	})
}

// withIOThread returns a copy of a definition with one more iothread.
func withIOThread(d *domain.Definition, id uint) (*domain.Definition, error) {
	switch next := d.IOThreads + 1; {
	case id == 0:
		return nil, fault.New(fault.Invalid, fault.Call, "0 is not the ID of an iothread; the domain's next one is %d", next)
	case id < next:
		return nil, fault.New(fault.Invalid, fault.Call, "the domain has an iothread %d already; its next one is %d", id, next)
	case next > domainxml.MaxIOThreads:
		return nil, fault.New(fault.Invalid, fault.Call, "a domain has at most %d iothreads", domainxml.MaxIOThreads)
	case id > next:
		return nil, fault.New(fault.Unsupported, fault.Domain, "cannot add iothread %d: iothreads are numbered without gaps; add %d", id, next)
	}
	d = d.Clone()
	d.IOThreads = id
	return d, nil
}

// name returns the name of the thread's object in QEMU, which its control group also has.
func (a *IOThreadOp) name() string { return "iothread" + strconv.FormatUint(uint64(a.ID), 10) }

// add makes the thread in QEMU, after the bound of QEMU's threads is raised.
func (a *IOThreadOp) add(ctx context.Context) error {
	s, err := a.r.Monitor()
	if err != nil {
		return err
	}
	if there, err := a.isThere(ctx, s); there || err != nil {
		return err
	}
	if err := a.allowThreads(ctx); err != nil {
		return err
	}
	return s.Execute(ctx, "object-add", map[string]any{"qom-type": "iothread", "id": a.name()}, nil)
}

func (a *IOThreadOp) isThere(ctx context.Context, s *qmp.Session) (bool, error) {
	var threads []machine.QEMUIOThread
	if err := s.Execute(ctx, "query-iothreads", nil, &threads); err != nil {
		return false, err
	}
	return slices.ContainsFunc(threads, func(t machine.QEMUIOThread) bool { return t.ID == a.name() }), nil
}

// allowThreads raises the bound of QEMU's threads. An iothread has workers of its own, and QEMU aborts if
// it cannot make a thread. If the iothread is refused later, the bound stays raised.
func (a *IOThreadOp) allowThreads(ctx context.Context) error {
	r := a.r
	if r.User == nil {
		return nil
	}
	var after *domain.Definition
	if err := r.InLoop(ctx, func(*machine.Guest) error { after = r.Definition.Clone(); return nil }); err != nil {
		return err
	}
	after.IOThreads = a.ID
	most := provision.MaxThreads(after)
	if _, err := r.Reg.Cgroups.Guest(r.UUID).Apply(kernel.Limits{PIDs: &most}); err != nil {
		return err
	}
	allowed, err := r.Reg.Kernel.AllowThreads(r.PID, most)
	if err != nil {
		return err
	}
	if least := provision.Need(after).Threads + provision.Workers*uint64(1+after.IOThreads); allowed < least {
		return fault.New(fault.NoCapacity, fault.Host, "the guest's QEMU may have %d threads and might need %d with iothread %d, and this daemon cannot raise the limit; "+
			"add it to the config and start the guest again", allowed, least, a.ID)
	}
	return nil
}

// remove removes the thread. No disk uses it yet.
func (a *IOThreadOp) remove(ctx context.Context) error {
	s, err := a.r.Monitor()
	if err != nil {
		return err
	}
	if there, err := a.isThere(ctx, s); err != nil {
		return err
	} else if there {
		if err := s.Execute(ctx, "object-del", map[string]any{"id": a.name()}, nil); err != nil {
			return err
		}
	}
	return a.r.Reg.Cgroups.Guest(a.r.UUID).Threads(a.name()).Remove(ctx)
}

// settle gives the thread its limits and CPUs, like those of the threads made at the start. A new thread
// inherits the CPUs of the thread that made it.
func (a *IOThreadOp) settle(ctx context.Context) error {
	r := a.r
	s, err := r.Monitor()
	if err != nil {
		return err
	}
	var def *domain.Definition
	if err := r.InLoop(ctx, func(*machine.Guest) error { def = r.Definition; return nil }); err != nil {
		return err
	}
	if _, err := provision.LimitThreads(ctx, r.Reg, s, r, &domain.CPUTune{}, &def.Tune); err != nil { // missing limits were reported at the start
		return err
	}
	threads, err := r.Reg.QueryIOThreads(ctx, s, r.PID)
	if err != nil {
		return err
	}
	thread, is := threads[a.ID]
	if !is {
		return fault.New(fault.Failed, fault.Domain, "QEMU added %s but does not list it", a.name())
	}
	return provision.SetAffinity(thread, provision.OrAllCPUs(def.VCPUs.CPUs))
}

// define adds the thread to the running definition and, if asked, to the stored one.
func (a *IOThreadOp) define(ctx context.Context) error {
	return a.r.InLoop(ctx, func(g *machine.Guest) error {
		g.SetActive(func(d *domain.Definition) { d.IOThreads = max(d.IOThreads, a.ID) })
		g.WriteActive()
		if !a.Config {
			return nil
		}
		return provision.FollowOnce(g, a.op.Scope(), a.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
			config.IOThreads = max(config.IOThreads, a.ID) // another client may have stored it since
			return config, nil
		})
	})
}
