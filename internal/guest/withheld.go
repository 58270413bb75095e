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

// What the host does not take back when a guest has ended (a run directory on a file system that
// cannot be written to, anything while the daemon can open no more files) is given back as soon as
// it does. Most of it goes by the guest's UUID: once the guest is started again that start has
// cleared it away, or has it.

// outdate has the record of a run that has ended, whose directory the host has not taken back yet,
// or that could not be adopted, say what has become of the guest since: the next daemon settles the
// guest by it, and would have back what was forgotten. It runs in the loop.
func (g *Guest) outdate(persistent bool) error {
	if g.run != nil || g.job != nil {
		return nil // it is of a run that goes on, or begins
	}
	dir := g.reg.guestDir(g.uuid)
	rec, err := readRunRecord(dir)
	switch {
	case rec == nil && g.quarantine != "":
		return nil // nor does the next daemon read it
	case rec != nil && g.quarantine == "":
		rec.FromManaged = false
		rec.KeepTPM, rec.MadeNVRAM = true, false // what of them was to go has gone
	}
	if rec != nil {
		rec.State.Persistent = persistent
		err = errors.Join(forgetSaves(dir), writeRunRecord(dir, rec))
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot write down what becomes of domain %q", g.record.Name)
}

// forgetSaves removes the records of saves that are complete: what they made has been removed since.
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

// lastTry is the longest pause between two tries.
const lastTry = time.Minute

// giveBackLater tries again, for as long as it takes, what a run that has ended could not give back.
func (r *Registry) giveBackLater(run *run) {
	left := run.withheld
	if run.withheld = nil; len(left) == 0 {
		return
	}
	r.loops.Go(func() {
		_ = UntilDone(r.life, lastTry, func() error { // fails with the daemon's end
			if left = r.giveBackNow(run.UUID, left, run.log); len(left) > 0 {
				return errWithheld
			}
			return nil
		})
	})
}

// errWithheld says that something is not given back yet.
var errWithheld = errors.New("the host has not taken all back")

// UntilDone tries something until it is done, later after each try, and at last once in longest. It
// fails when ctx ends.
func UntilDone(ctx context.Context, longest time.Duration, try func() error) error {
	pauses := &backoff.ExponentialBackOff{InitialInterval: firstPause, Multiplier: 2, MaxInterval: longest}
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, try() }, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	return err
}

// giveBackNow tries once, in the guest's turn, and gives what is left.
func (r *Registry) giveBackNow(uuid string, all []release, log *slog.Logger) []release {
	var left []release // the try's, for as long as that may go on
	try := func(ctx context.Context) error {
		ctx, stop := context.WithTimeout(ctx, releaseLimit)
		defer stop()
		for _, one := range all {
			if err := one.do(ctx); err != nil {
				log.Debug("cannot release yet what the guest held", "what", one.what, "error", err)
				left = append(left, one)
				continue
			}
			log.Info("what the guest held and could not be released is given back", "what", one.what)
		}
		return nil
	}
	leave, err := r.removing.take(r.life, uuid) // nobody makes another with its UUID meanwhile
	if err != nil {
		return nil // the daemon stops
	}
	defer leave()
	g, err := r.ByUUID(uuid)
	if fault.Is(err, fault.NotFound) {
		_ = try(r.life) // never fails
		return left
	}
	err = g.perform(r.life, scope.Daemon("giving back what a guest held"), "", domain.JobDestroy, releaseLimit, func() (work, error) {
		if g.run != nil || g.quarantine != "" {
			return nil, nil // its start has cleared it away
		}
		return func(ctx context.Context, sc scope.Scope) (settle, error) { return nil, try(ctx) }, nil
	})
	if err != nil { // another work takes its time, or the guest has just gone
		return all
	}
	return left
}
