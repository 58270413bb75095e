package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// operationObjects are the guests and volumes that an operation makes or removes.
type operationObjects struct {
	Guests  []string // UUIDs
	Volumes []VolumeName
	// Kept says why everything that was made stays; empty: it does not stay.
	Kept string `json:",omitempty"`

	fleet *Fleet
	op    *operation.Operation
}

// Opened implements operation.Opener.
func (p *operationObjects) Opened(op *operation.Operation) error {
	p.op = op
	return nil
}

func guestObject(uuid string) string      { return "guest/" + uuid }
func volumeObject(name VolumeName) string { return "volume/" + name.String() }

func (p *operationObjects) objects() (all []string) {
	for _, uuid := range p.Guests {
		all = append(all, guestObject(uuid))
	}
	for _, v := range p.Volumes {
		all = append(all, volumeObject(v))
	}
	return all
}

// members returns those of the guests that exist.
func (p *operationObjects) members() (all []Member) {
	for _, uuid := range p.Guests {
		if g, err := p.fleet.guests.ByUUID(uuid); err == nil && p.op.Has(guestObject(uuid)) {
			all = append(all, p.fleet.MemberOf(g))
		}
	}
	return all
}

// keepFirstVolumes records that only the first n volumes were made. The others may belong to another owner.
func (p *operationObjects) keepFirstVolumes(n int) error {
	p.Volumes = p.Volumes[:n]
	return p.op.Save()
}

// undefine removes the guests. If a user has started one of them, everything stays.
func (p *operationObjects) undefine(ctx context.Context) error {
	if p.Kept != "" {
		return nil
	}
	members := p.members()
	for _, m := range members {
		release, err := keepFromStarting(ctx, p.op.Scope(), m)
		switch {
		case fault.Is(err, fault.WrongState):
			p.Kept = fmt.Sprintf("domain %q: %v", m.View.Name, err)
			p.fleet.log.Warn("remains of unfinished operation in use; kept", "kind", p.op.Kind(), "domain", m.View.Name, "cause", err)
			return p.op.Save()
		case fault.Is(err, fault.NotFound):
			continue
		case err != nil:
			return err
		}
		defer release()
	}
	return undefineAll(ctx, p.op.Scope(), members)
}

// keepFromStarting prevents a guest from being started. It refuses a guest that runs or has run under this daemon.
func keepFromStarting(ctx context.Context, sc scope.Scope, m Member) (release func(), err error) {
	if err := checkNeverStarted(m); err != nil {
		return nil, err // does not wait for a stuck guest
	}
	if _, release, err = m.Guest.KeepShutOff(ctx, sc); err != nil {
		return nil, err
	}
	if err := checkNeverStarted(m); err != nil { // it may have run just before
		release()
		return nil, err
	}
	return release, nil
}

// checkNeverStarted refuses a guest that runs or has run under this daemon.
func checkNeverStarted(m Member) error {
	switch v := m.Guest.View(); {
	case v.State.Active():
		return fault.New(fault.WrongState, fault.Domain, "it is running")
	case v.Reason != domain.ReasonUnknown:
		return fault.New(fault.WrongState, fault.Domain, "it has been started")
	}
	return nil
}

// undefineAll undefines guests with all their state, in reverse order.
func undefineAll(ctx context.Context, sc scope.Scope, members []Member) error {
	all := guest.UndefineOptions{ManagedSave: true, Snapshots: true, Checkpoints: true, NVRAM: true, TPM: true}
	var failures []error
	for _, m := range slices.Backward(members) {
		if !m.Guest.View().Persistent {
			continue
		}
		failures = append(failures, ignoreKind(guest.Undefine(ctx, m.Guest, sc, all), fault.NotFound))
		failpoint.Reach("fleet.undefined")
		if m.Guest.View().State.Active() { // a user started it meanwhile
			failures = append(failures, ignoreKind(guest.Destroy(ctx, m.Guest, sc, false), fault.WrongState))
		}
	}
	return errors.Join(failures...)
}

// deleteVolumes deletes the volumes in reverse order, after their guests.
func (p *operationObjects) deleteVolumes(ctx context.Context) error {
	var failures []error
	for _, v := range p.unusedVolumes(ctx) {
		failures = append(failures, p.fleet.deleteVolume(ctx, p.op.Scope(), v))
		failpoint.Reach("fleet.deleted")
	}
	return errors.Join(failures...)
}

// unusedVolumes returns the volumes without another user, in reverse order. Since the record was written, a guest
// may use one as its disk, a volume may use one as its backing file, or another operation may make one of that
// name. A volume that stays keeps its backing volumes.
func (p *operationObjects) unusedVolumes(ctx context.Context) (free []VolumeName) {
	if p.Kept != "" {
		return nil
	}
	log, users := p.fleet.log.With("kind", p.op.Kind()), p.fleet.diskUsers()
	for _, v := range slices.Backward(p.Volumes) {
		if !p.op.Has(volumeObject(v)) {
			continue
		}
		if who := p.fleet.diskUsersOf(v, users); len(who) > 0 {
			log.Error("volume kept: it is the disk of another guest", "volume", v.String(), "domain", who[0].name)
		} else if above, is := p.fleet.overlayOf(ctx, v, free); is {
			log.Error("volume kept: it is the backing file of another volume", "volume", v.String(), "above", above.String())
		} else {
			free = append(free, v)
		}
	}
	return free
}
