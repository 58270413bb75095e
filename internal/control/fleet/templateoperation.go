package fleet

import (
	"context"
	"errors"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// templateKind makes a guest a template for thin clones, and undoes that if no clone
// is made.
var templateKind = operation.Kind[*Fleet]{
	Name: "template", Version: 1,
	Steps: []string{"make", "clone"}, Undo: []string{"make"},
	Bind: func(f *Fleet) operation.Work { return &templateOperation{fleet: f} },
}

// templateOperation is the payload.
type templateOperation struct {
	Source string // the source's UUID

	fleet *Fleet
	op    *operation.Operation
	// The following fields are set in the daemon that began it only.
	source *guest.Guest
	clone  func(context.Context) error
}

// Opened implements operation.Opener.
func (m *templateOperation) Opened(op *operation.Operation) error {
	m.op = op
	return nil
}

// Steps implements operation.Work.
func (m *templateOperation) Steps() []operation.Step {
	return []operation.Step{
		{Name: "make", Effect: operation.Lasting, Do: func(ctx context.Context) error { return m.source.MakeTemplate(ctx, m.op.Scope()) }, Undo: m.undoTemplate},
		{Name: "clone", Effect: operation.Lasting, Do: func(ctx context.Context) error { return m.clone(ctx) }},
	}
}

// undoTemplate makes the source a plain guest again, unless another call has made thin clones of it, or
// does so now. After a restart pools may be inactive, and their clones unknown: the source then stays a
// template until a user changes that.
func (m *templateOperation) undoTemplate(ctx context.Context) error {
	g, err := m.fleet.guests.ByUUID(m.Source)
	if err != nil {
		return nil //nolint:nilerr // the source was removed
	}
	away := func(p *volume.Pool) bool {
		v := p.View()
		return v.State != volume.Running || v.ReadAt.IsZero()
	}
	if m.source == nil && slices.ContainsFunc(m.fleet.pools.List(), away) {
		return nil
	}
	return ignoreKind(m.fleet.endTemplate(ctx, m.op.Scope(), g, nil), fault.Busy)
}

// errNoClone undoes the template.
var errNoClone = errors.New("no clone was made")

// cloneThin makes thin clones of a guest that is not a template yet. The callback releases the guest, which the
// caller had kept from starting.
func (f *Fleet) cloneThin(ctx context.Context, sc scope.Scope, g *guest.Guest, all func(context.Context) Summary) (sum Summary, _ error) {
	m := &templateOperation{Source: g.UUID, fleet: f, source: g, clone: func(ctx context.Context) error {
		if sum = all(ctx); sum.Done == 0 {
			return errNoClone
		}
		return nil
	}}
	op, err := f.begin(sc, templateKind.Name, m, nil)
	if err != nil {
		return sum, err
	}
	err = op.Run(ctx)
	if errors.Is(err, errNoClone) && op.Status().State == operation.Ended { // each clone's result says why
		err = nil
	}
	return sum, err
}
