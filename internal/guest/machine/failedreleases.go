package machine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// MaxReleasePause is the longest pause between two attempts.
const MaxReleasePause = time.Minute

// RetryReleases repeats the failed releases of an instance that has ended, until they succeed.
func (r *Registry) RetryReleases(run *Instance) {
	left := run.FailedReleases
	if run.FailedReleases = nil; len(left) == 0 {
		return
	}
	r.Loops.Go(func() {
		_ = RetryUntilDone(r.Life, MaxReleasePause, func() error { // fails when the daemon stops
			if left = r.runReleases(run.UUID, left, run.Log); len(left) > 0 {
				return ErrReleaseFailed
			}
			return nil
		})
	})
}

// ErrReleaseFailed says that a release has not succeeded yet.
var ErrReleaseFailed = errors.New("a resource of the guest is not released yet")

// RetryUntilDone calls try until it succeeds, with pauses that double up to longest. It fails when ctx ends.
func RetryUntilDone(ctx context.Context, longest time.Duration, try func() error) error {
	pauses := &backoff.ExponentialBackOff{InitialInterval: FirstPause, Multiplier: 2, MaxInterval: longest}
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, try() }, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	return err
}

// runReleases runs the releases once, as a job of the guest, and returns those that failed.
func (r *Registry) runReleases(uuid string, all []release, log *slog.Logger) []release {
	var left []release // the attempt owns it while it runs
	try := func(ctx context.Context) error {
		ctx, stop := context.WithTimeout(ctx, ReleaseLimit)
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
	leave, err := r.RemovalLocks.Lock(r.Life, uuid) // no guest can be made with this UUID until this ends
	if err != nil {
		return nil // the daemon stops
	}
	defer leave()
	g, err := r.ByUUID(uuid)
	if fault.Is(err, fault.NotFound) {
		_ = try(r.Life) // it never fails
		return left
	}
	err = g.Perform(r.Life, scope.Daemon("giving back what a guest held"), "", domain.JobDestroy, ReleaseLimit, func() (Work, error) {
		if g.Instance != nil || g.Quarantine != "" {
			return nil, nil // its start has removed it
		}
		return func(ctx context.Context, sc scope.Scope) (Settle, error) { return nil, try(ctx) }, nil
	})
	if err != nil { // another job takes long, or the guest has just gone
		return all
	}
	return left
}
