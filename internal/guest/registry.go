package guest

import (
	"context"
	"errors"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

func newRegistry(c machine.Config) *machine.Registry {
	r := &machine.Registry{
		Config: c, Log: c.Log, Store: c.Store, Events: c.Events,
		GuestsByName: map[string]*machine.Guest{}, GuestsByUUID: map[string]*machine.Guest{}, GuestsByID: map[int]*machine.Guest{},
		Undefinitions: map[string]*operation.Set[*machine.Registry]{},
		Kinds:         guestOperations, ApplyEffect: applyEffect, HandleEvent: handleEvent,
	}
	r.Life, r.Stop = context.WithCancelCause(context.Background())
	r.Sampler = statistics.NewSampler(r.StatsCaches)
	if c.Labels != nil {
		c.Prepared = 0 // a process gets its label or profile when it starts
	}
	r.WarmPool = launch.NewWarmPool(r, c.Prepared)
	r.SpaceWatch = provision.NewSpaceWatch(r)
	r.UniqueIndex = machine.NewUniqueIndex()
	r.PendingStarts.Left = map[string]machine.PendingStart{}
	return r
}

// Close ends the loops and leaves every QEMU running.
func Close(r *machine.Registry) {
	r.Stop(fault.New(fault.Aborted, fault.Host, "the daemon is stopping"))
	r.Loops.Wait()
	for _, set := range undefinitionSets(r) {
		set.Close()
	}
	for _, g := range r.GuestsByUUID {
		if g.Instance != nil && g.Instance.Ops != nil {
			g.Instance.Ops.Close()
		}
	}
	r.Meter.Close()
}

// withClaimedGuest calls do with the guest of that name and UUID, which it makes if both are free. If the guest
// found is gone before do ran, it tries again with a new one, so that no client is refused because of it.
func withClaimedGuest(ctx context.Context, r *machine.Registry, name, uuid string, do func(*machine.Guest) error) (*machine.Guest, error) {
	for {
		leave, err := r.RemovalLocks.Lock(ctx, uuid)
		if err != nil {
			return nil, fault.Wrap(err, fault.Of(err), fault.Domain, "cannot make domain %q yet: files of the previous domain with UUID %s are still being removed", name, uuid)
		}
		g, err := claimReusedUUID(r, name, uuid)
		leave()
		if err != nil {
			return nil, err
		}
		if err = do(g); !errors.Is(err, machine.ErrForgotten) || r.Life.Err() != nil {
			return g, unclaimGuest(r, g, err)
		}
	}
}

// claimReusedUUID is claim with a check of what an earlier guest of that UUID left. It checks while no guest
// has the UUID: otherwise it would overlook what the earlier guest has yet to leave.
func claimReusedUUID(r *machine.Registry, name, uuid string) (*machine.Guest, error) {
	for {
		_, none := r.ByUUID(uuid)
		if none != nil {
			if err := checkReusedUUID(r, name, uuid); err != nil {
				return nil, err
			}
		}
		g, err := claimGuest(r, name, uuid, none != nil)
		if !errors.Is(err, machine.ErrForgotten) {
			return g, err
		}
	}
}

// claimGuest returns the guest of that name and UUID. It makes the guest if both are free and mayBeNew is set.
// If another guest has one of the two, it returns a conflict.
func claimGuest(r *machine.Registry, name, uuid string, mayBeNew bool) (g *machine.Guest, err error) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	named, known := r.GuestsByName[name], r.GuestsByUUID[uuid]
	switch {
	case named == nil && known == nil && !mayBeNew:
		return nil, machine.ErrGone(name) // it was there a moment ago
	case named == nil && known == nil && len(r.GuestsByUUID) >= machine.MaxGuests:
		return nil, fault.New(fault.NoCapacity, fault.Domain, "there are %d domains already; undefine one", machine.MaxGuests)
	case named == nil && known == nil:
		if err := domain.CheckName(name); err != nil {
			return nil, err // an existing guest may have such a name from before
		}
		g = newGuest(r, name, uuid)
		r.GuestsByName[name], r.GuestsByUUID[uuid] = g, g
		startLoop(r, g)
		return g, nil
	case named == known:
		return named, nil
	case known != nil:
		return nil, fault.New(fault.Exists, fault.Domain, "domain '%s' is already defined with uuid %s", known.Name(), uuid)
	default:
		return nil, fault.New(fault.Exists, fault.Domain, "domain '%s' already exists with uuid %s", name, named.UUID)
	}
}

// unclaimGuest forgets a guest after its request failed, unless it is defined or runs, and returns the failure.
func unclaimGuest(r *machine.Registry, g *machine.Guest, failure error) error {
	if failure == nil {
		return nil
	}
	_ = g.Change(r.Life, scope.Daemon("forgetting a guest that has ended"), "", func() error { forgetIfUnused(g); return nil }) // it is gone already, or the daemon stops
	return failure
}

// startLoop starts a guest's loop. It ends with the registry, or with the guest.
func startLoop(r *machine.Registry, g *machine.Guest) {
	r.Loops.Go(func() { loop(r.Life, g) })
}
