package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// tileCreateKind makes a tile. A tile is complete when its record is removed; a daemon that finds the record
// undoes the tile.
var tileCreateKind = operation.Kind[*Fleet]{
	Name: "tile-create", Version: 1,
	Steps: []string{"volumes", "guests"}, Undo: []string{"volumes", "guests"},
	Bind: func(f *Fleet) operation.Work {
		return &tileCreateOperation{operationObjects: operationObjects{fleet: f}}
	},
}

// tileCreateOperation is the payload.
type tileCreateOperation struct {
	operationObjects
	docs *tileDocuments // set only in the daemon that began it
}

func newTileCreateOperation(f *Fleet, docs *tileDocuments) *tileCreateOperation {
	t := &tileCreateOperation{operationObjects: operationObjects{fleet: f}, docs: docs}
	for _, v := range docs.volumes {
		t.Volumes = append(t.Volumes, v.VolumeName)
	}
	for _, d := range docs.domains {
		t.Guests = append(t.Guests, d.uuid)
	}
	return t
}

// Steps implements operation.Work.
func (t *tileCreateOperation) Steps() []operation.Step {
	return []operation.Step{
		{Name: "volumes", Effect: operation.Lasting, Do: t.createVolumes, Undo: t.deleteVolumes},
		{Name: "guests", Effect: operation.Lasting, Do: t.define, Undo: t.undefine},
	}
}

// createVolumes makes the volumes in the template's order, so that one may be the backing file of a later one.
func (t *tileCreateOperation) createVolumes(ctx context.Context) error {
	for i, v := range t.docs.volumes {
		if err := t.fleet.createVolume(ctx, t.op.Scope(), v); err != nil {
			return errors.Join(fmt.Errorf("cannot create volume %s: %w", v.VolumeName, err), t.keepFirstVolumes(i))
		}
		failpoint.Reach("tile.volume")
	}
	return nil
}

func (t *tileCreateOperation) define(ctx context.Context) error {
	for _, d := range t.docs.domains {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if _, err := guest.Define(context.WithoutCancel(ctx), t.fleet.guests, t.op.Scope(), d.doc, false); err != nil {
			return fmt.Errorf("cannot define domain %q: %w", d.name, err)
		}
		failpoint.Reach("tile.guest")
	}
	return nil
}

// tileRemoveKind removes a tile. An unfinished removal is completed.
var tileRemoveKind = operation.Kind[*Fleet]{
	Name: "tile-remove", Version: 1,
	Steps: []string{"end", "undefine", "delete"},
	Bind: func(f *Fleet) operation.Work {
		return &tileRemoveOperation{operationObjects: operationObjects{fleet: f}}
	},
}

// tileRemoveOperation is the payload.
type tileRemoveOperation struct {
	operationObjects
	Tile string // SET/NUMBER

	refused bool // the tile is kept
}

func newTileRemoveOperation(f *Fleet, tile TileState) *tileRemoveOperation {
	t := &tileRemoveOperation{operationObjects: operationObjects{fleet: f, Volumes: tile.Volumes}, Tile: tile.Name()}
	for _, m := range tile.members {
		t.Guests = append(t.Guests, m.View.UUID)
	}
	return t
}

// Steps implements operation.Work.
func (t *tileRemoveOperation) Steps() []operation.Step {
	return []operation.Step{
		{Name: "end", Effect: operation.Lasting, Decisive: true, Do: t.end},
		{Name: "undefine", Effect: operation.Lasting, Do: t.unlessRefused(t.undefineEnded)},
		{Name: "delete", Effect: operation.Lasting, Do: t.unlessRefused(t.deleteVolumes)},
	}
}

// end ends the guests. The tile is kept if a guest does not end, or if a volume has another user by then.
func (t *tileRemoveOperation) end(ctx context.Context) error {
	members := t.members()
	if len(members) < len(t.Guests) {
		return nil // some guests are already undefined
	}
	err := endAll(ctx, t.op.Scope(), members)
	if err == nil { // checked again, because a volume may get another user while guests end
		err = t.fleet.checkUnused(ctx, t.Tile, t.Volumes, t.fleet.diskUsers())
	}
	t.refused = err != nil
	return operation.Final(err)
}

func (t *tileRemoveOperation) unlessRefused(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if t.refused {
			return nil
		}
		return do(ctx)
	}
}

func (t *tileRemoveOperation) undefineEnded(ctx context.Context) error {
	return undefineAll(ctx, t.op.Scope(), t.members())
}

// endAll ends the guests of a tile.
func endAll(ctx context.Context, sc scope.Scope, members []Member) error {
	var failures []error
	for _, m := range members {
		// Destroy also cancels the pending start of a guest that is shut off.
		failures = append(failures, ignoreKind(guest.Destroy(ctx, m.Guest, sc, false), fault.WrongState))
	}
	return errors.Join(failures...)
}
