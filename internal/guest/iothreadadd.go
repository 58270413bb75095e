package guest

import (
	"context"
	"fmt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// ioThreadKind gives a running guest one more iothread, and its stored definition, too.
var ioThreadKind = operation.Kind[*run]{
	Name: "iothread", Version: 1, Class: operation.Change,
	Steps: []string{"add", "confine", "define"},
	Bind:  func(r *run) operation.Work { return &ioThreadAddition{r: r} },
}

// ioThreadAddition is the payload.
type ioThreadAddition struct {
	ID     uint
	Config bool `json:",omitempty"` // the stored definition gets it, too

	r  *run
	op *operation.Operation
}

// Opened implements operation.Opener.
func (a *ioThreadAddition) Opened(op *operation.Operation) error {
	a.op = op
	return nil
}

// Steps implements operation.Work.
func (a *ioThreadAddition) Steps() []operation.Step {
	return []operation.Step{
		{Name: "add", Effect: operation.Process, Decisive: true, Do: a.add, Probe: a.probe},
		{Name: "confine", Effect: operation.Process, Do: a.confine},
		{Name: "define", Effect: operation.Process, Do: a.define},
	}
}

// AddIOThread gives the guest one more iothread. They are numbered from 1 without a gap.
func (g *Guest) AddIOThread(ctx context.Context, id uint, to Affect) error {
	if id == 0 {
		return fault.New(fault.Invalid, fault.Call, "invalid value of 0 for iothread_id")
	}
	return g.edit(ctx, to, func() (*domain.Definition, error) {
		return withIOThread(g.inactive, id)
	}, func(config *domain.Definition) (work, error) {
		r := g.run
		if _, err := withIOThread(r.def, id); err != nil {
			return nil, err
		}
		if _, err := r.monitor(); err != nil {
			return nil, err
		}
		a := &ioThreadAddition{ID: id, Config: config != nil, r: r}
		return func(ctx context.Context) (settle, error) {
			return nil, r.perform(ctx, ioThreadKind.Name, a, "settings")
		}, nil
	})
}

// withIOThread gives a definition with one more iothread.
func withIOThread(d *domain.Definition, id uint) (*domain.Definition, error) {
	switch {
	case id <= d.IOThreads:
		return nil, fault.New(fault.Invalid, fault.Call, "an IOThread is already using iothread_id '%d'", id)
	case id > d.IOThreads+1:
		return nil, fault.New(fault.Unsupported, fault.Call, "iothreads are numbered from 1 without a gap; add iothread %d", d.IOThreads+1)
	case id > maxIOThreads:
		return nil, fault.New(fault.Invalid, fault.Call, "%d iothreads are more than the %d that a guest can have", id, maxIOThreads)
	}
	d = d.Clone()
	d.IOThreads = id
	return d, nil
}

// add has QEMU make the thread.
func (a *ioThreadAddition) add(ctx context.Context) error {
	s, err := a.r.monitor()
	if err != nil {
		return err
	}
	return s.Execute(ctx, "object-add", map[string]any{"qom-type": "iothread", "id": fmt.Sprintf("iothread%d", a.ID)}, nil)
}

// probe asks QEMU whether it has the thread.
func (a *ioThreadAddition) probe(ctx context.Context, _ operation.Gone) (operation.Verdict, error) {
	s, err := a.r.monitor()
	if err != nil {
		return operation.Never, err
	}
	var threads []ioThread
	if err := s.Execute(ctx, "query-iothreads", nil, &threads); err != nil {
		return operation.Never, err
	}
	for _, t := range threads {
		if id, ok := t.number(); ok && id == a.ID {
			return operation.Happened, nil
		}
	}
	return operation.Never, nil
}

// confine gives the new thread its share of the processors, and the guest's binding instead
// of that of the thread which made it. The thread stays where the host cannot do that.
func (a *ioThreadAddition) confine(ctx context.Context) error {
	s, err := a.r.monitor()
	if err != nil {
		return err
	}
	def := a.r.guest.View().Active
	if def == nil {
		return nil // it ends
	}
	if _, err := a.r.reg.limitThreads(ctx, s, a.r, &domain.CPUTune{}, &def.Tune); err != nil {
		return operation.Final(err)
	}
	threads, err := a.r.reg.queryIOThreads(ctx, s, a.r.PID)
	if err != nil {
		return err
	}
	if thread, is := threads[a.ID]; is {
		return operation.Final(setAffinity(thread, orAnywhere(def.VCPUs.CPUs)))
	}
	return nil
}

// define has both definitions have it.
func (a *ioThreadAddition) define(ctx context.Context) error {
	return a.r.inLoop(ctx, func(g *Guest) error {
		if a.Config {
			err := g.followOnce(ctx, a.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
				config.IOThreads = max(config.IOThreads, a.ID)
				return config, nil
			})
			if err != nil {
				return err
			}
		}
		g.setActive(func(d *domain.Definition) { d.IOThreads = max(d.IOThreads, a.ID) })
		g.keepActive()
		return nil
	})
}
