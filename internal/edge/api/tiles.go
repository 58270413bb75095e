package api

import (
	"context"

	"connectrpc.com/connect"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// ListTiles lists the tiles: groups of guests that were made from one template.
func (s *Server) ListTiles(context.Context, *lodgev1.ListTilesRequest) (*lodgev1.ListTilesResponse, error) {
	answer := &lodgev1.ListTilesResponse{}
	for _, t := range s.Fleet.Tiles() {
		tile := &lodgev1.Tile{Set: t.Set, Number: uint32(t.Number), Guests: uint32(t.Guests), Running: uint32(t.Running)}
		for _, v := range t.Volumes {
			tile.Volumes = append(tile.Volumes, v.String())
		}
		answer.Tiles = append(answer.Tiles, tile)
	}
	return answer, nil
}

// maxTiles bounds the numbers of tiles in one call.
const maxTiles = 1 << 20

// CreateTiles makes tiles.
func (s *Server) CreateTiles(ctx context.Context, r *lodgev1.CreateTilesRequest, stream *connect.ServerStream[lodgev1.Step]) error {
	template, err := fleet.ParseTile([]byte(r.GetTemplate()))
	if err != nil {
		return err
	}
	if r.GetCount() > maxTiles || r.GetFirst() > maxTiles {
		return fault.New(fault.Invalid, fault.Call, "tiles are numbered to %d", 2*maxTiles)
	}
	sc, done := s.scope(ctx, authz.Define)
	defer done()
	return s.stream(ctx, stream, authz.Entry{Call: "CreateTiles", Permission: authz.Define, Resource: authz.Resource{Name: "tiles of " + r.GetSet()}}, func(ctx context.Context, t *setMessages) (fleet.Summary, error) {
		t.addPlan(fleet.Plan{Total: int(r.GetCount())})
		tell := s.auditResults(ctx, "CreateTiles", authz.Define, t.addResult)
		made, err := s.makePool(ctx, template, r.GetDryRun())
		if err != nil {
			return fleet.Summary{}, err
		}
		return s.Fleet.CreateTiles(ctx, sc, template, r.GetSet(), int(r.GetFirst()), int(r.GetCount()), r.GetDryRun(), func(r fleet.Result) {
			if r.Outcome == fleet.Done {
				r.Note += made
			}
			tell(r)
		})
	})
}

// makePool makes the pool that a template needs, for an unrestricted client, and returns a note about it.
// Restricted clients get an error of CreateTiles that names the missing pool.
func (s *Server) makePool(ctx context.Context, template *fleet.TileTemplate, dry bool) (note string, err error) {
	if dry || s.Authorizer.Restricted(caller(ctx)) {
		return "", nil
	}
	folder, err := s.Fleet.MakePool(ctx, scope.Daemon("the pool of a template, for a client that no rules hold"), template)
	if folder == "" && err == nil {
		return "", nil
	}
	s.Audit.Note(authz.Entry{
		Principal: caller(ctx), API: "lodge", Call: "CreateTiles", Permission: authz.Pools, Err: err,
		Resource: authz.Resource{Kind: authz.Pool, Name: fleet.DefaultPool},
	})
	return "; made pool " + fleet.DefaultPool + " in " + folder, err
}

// RemoveTiles removes tiles.
func (s *Server) RemoveTiles(ctx context.Context, r *lodgev1.RemoveTilesRequest, stream *connect.ServerStream[lodgev1.Step]) error {
	sc, done := s.scope(ctx, authz.Define, authz.Stop)
	defer done()
	return s.stream(ctx, stream, authz.Entry{Call: "RemoveTiles", Permission: authz.Define, Resource: authz.Resource{Name: "tiles " + r.GetTiles()}}, func(ctx context.Context, t *setMessages) (fleet.Summary, error) {
		t.addPlan(fleet.Plan{})
		return s.Fleet.RemoveTiles(ctx, sc, r.GetTiles(), r.GetDryRun(), s.auditResults(ctx, "RemoveTiles", authz.Define, t.addResult))
	})
}
