package api

import (
	"context"

	"connectrpc.com/connect"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
)

// CloneGuests clones a guest.
func (s *Server) CloneGuests(ctx context.Context, r *lodgev1.CloneGuestsRequest, stream *connect.ServerStream[lodgev1.Step]) error {
	request := fleet.CloneRequest{
		Source: r.GetSource(), Names: r.GetNames(), Thin: r.GetThin(), Pool: r.GetPool(), NoRNG: r.GetNoRng(), DryRun: r.GetDryRun(),
	}
	if seed := r.GetSeed(); seed != nil {
		request.Seed = &fleet.Seed{UserData: seed.GetUserData(), NetworkConfig: seed.GetNetworkConfig()}
	}
	sc, done := s.scope(ctx, authz.Define)
	defer done()
	return s.stream(ctx, stream, authz.Entry{Call: "CloneGuests", Permission: authz.Define, Resource: authz.Resource{Name: "clones of " + r.GetSource()}}, func(ctx context.Context, t *setMessages) (fleet.Summary, error) {
		return s.Fleet.Clone(ctx, sc, request, t.addPlan, s.auditResults(ctx, "CloneGuests", authz.Define, t.addResult))
	})
}
