package guest

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Some resources of an ended guest cannot be released at once: a run directory on a read-only file system,
// or anything while the daemon has no free descriptors. Their release is repeated until it succeeds. Most
// of them belong to the guest's UUID: once the guest is started again, that start has removed them, or uses
// them.

// outdate corrects the record in a run directory that is left of an ended run, or of a quarantined guest.
// The next daemon settles the guest by that record, and would bring back records that were deleted since.
// It runs in the loop.
func (g *Guest) outdate(persistent bool) error {
	if g.run != nil || g.job != nil {
		return nil // the record belongs to a run that continues or begins
	}
	dir := g.reg.guestDir(g.uuid)
	rec, err := readRunRecord(dir)
	switch {
	case rec == nil && g.quarantine != "":
		return nil // the next daemon cannot read it either
	case rec != nil && g.quarantine == "":
		rec.FromManaged = false
		rec.KeepTPM, rec.MadeNVRAM = true, false // these files have been removed, or stay
	}
	if rec != nil {
		rec.State.Persistent = persistent
		err = errors.Join(forgetSaves(dir), writeRunRecord(dir, rec))
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot record the state of domain %q", g.record.Name)
}

// forgetSaves removes the records of complete saves: their images have been removed since.
func forgetSaves(dir string) error {
	files := operation.Files{Dir: dir}
	all, err := files.Read()
	for _, r := range all {
		if r.Kind == saveKind.Name && r.Decided {
			err = errors.Join(err, files.Remove(r))
		}
	}
	return err
}

// lastTry is the longest pause between two attempts.
const lastTry = time.Minute

// giveBackLater repeats, for as long as it takes, the failed releases of a run that has ended.
func (r *Registry) giveBackLater(run *run) {
	left := run.withheld
	if run.withheld = nil; len(left) == 0 {
		return
	}
	r.loops.Go(func() {
		_ = UntilDone(r.life, lastTry, func() error { // fails when the daemon stops
			if left = r.giveBackNow(run.UUID, left, run.log); len(left) > 0 {
				return errWithheld
			}
			return nil
		})
	})
}

// errWithheld says that a release has not succeeded yet.
var errWithheld = errors.New("a resource of the guest is not released yet")

// UntilDone calls try until it succeeds, with pauses that double up to longest. It fails when ctx ends.
func UntilDone(ctx context.Context, longest time.Duration, try func() error) error {
	pauses := &backoff.ExponentialBackOff{InitialInterval: firstPause, Multiplier: 2, MaxInterval: longest}
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, try() }, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	return err
}

// giveBackNow runs the releases once, as a job of the guest, and returns those that failed.
func (r *Registry) giveBackNow(uuid string, all []release, log *slog.Logger) []release {
	var left []release // the attempt owns it while it runs
	try := func(ctx context.Context) error {
		ctx, stop := context.WithTimeout(ctx, releaseLimit)
		defer stop()
		for _, one := range all {
			if err := one.do(ctx); err != nil {
				log.Debug("cannot release a resource of the guest yet", "what", one.what, "error", err)
				left = append(left, one)
				continue
			}
			log.Info("resource of the guest released after a failure", "what", one.what)
		}
		return nil
	}
	leave, err := r.removing.take(r.life, uuid) // no guest can be made with this UUID until this ends
	if err != nil {
		return nil // the daemon stops
	}
	defer leave()
	g, err := r.ByUUID(uuid)
	if fault.Is(err, fault.NotFound) {
		_ = try(r.life) // it never fails
		return left
	}
	err = g.perform(r.life, scope.Daemon("giving back what a guest held"), "", domain.JobDestroy, releaseLimit, func() (work, error) {
		if g.run != nil || g.quarantine != "" {
			return nil, nil // its start has removed it
		}
		return func(ctx context.Context, sc scope.Scope) (settle, error) { return nil, try(ctx) }, nil
	})
	if err != nil { // another job takes long, or the guest has just gone
		return all
	}
	return left
}
