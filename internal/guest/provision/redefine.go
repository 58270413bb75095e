package provision

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Redefine stores a changed inactive definition. It runs in the loop.
func Redefine(g *machine.Guest, def *domain.Definition) error {
	text, err := domainxml.Format(def, domainxml.Style{Secure: true})
	if err != nil {
		return err
	}
	before, old := g.Inactive, g.Record
	g.Inactive, g.Record.XML, g.Record.Name = def, text, def.Name
	DropPathLimits(g, def)
	if err := g.Store(); err != nil {
		g.Inactive, g.Record = before, old
		return err
	}
	if g.Instance == nil {
		g.State.Policy = machine.Policy(def)
	}
	g.MarkUpdated()
	g.Publish()
	return nil
}

// FollowOnce changes the stored definition as an operation did the running one. It keeps what others have
// stored since, and does nothing if it has been done before. It runs in the loop. A change that no longer
// fits the definition is a final error. A store that takes no changes is not.
func FollowOnce(g *machine.Guest, sc scope.Scope, id string, change func(config *domain.Definition) (*domain.Definition, error)) error {
	if g == nil || g.Inactive == nil || slices.Contains(g.Record.Followed, id) {
		return nil
	}
	config, err := change(g.Inactive.Clone())
	if err != nil {
		return operation.Final(err)
	}
	SetPathLimits(g, sc, config)
	before := g.Record.Followed
	g.Record.Followed = append(slices.DeleteFunc(slices.Clone(before), func(id string) bool { return g.Instance != nil && !g.Instance.Ops.MayHaveRecord(id) }), id)
	if err := Redefine(g, config); err != nil {
		g.Record.Followed = before
		return err
	}
	return nil
}
