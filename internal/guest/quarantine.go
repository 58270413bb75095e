package guest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// setAside leaves a guest alone that cannot be adopted: its QEMU, if it runs, is
// not ended, and the guest is not started beside it. Where none runs, what lies
// around is cleared away.
func (r *Registry) setAside(dir string, cause error) {
	id := filepath.Base(dir)
	log := r.log.With("uuid", id, "dir", dir)
	ctx, stop := context.WithTimeout(r.life, releaseLimit)
	defer stop()
	err := r.clear(ctx, dir)
	if err == nil {
		log.Error("the run record of a guest that has ended cannot be used; what it held in the host may be left", "error", cause)
		return
	}
	log.Error("a guest cannot be adopted and is left alone", "error", cause, "until", err)
	if g := r.asideAs(id, dir); g != nil {
		g.quarantine = fmt.Sprintf("quarantined: this guest could not be adopted (%v); %v", cause, err)
		g.publish()
		r.loops.Go(func() { r.endQuarantine(g, dir) })
	}
}

// asideAs gives the guest of a run directory that is left alone. One of which nobody has a definition is
// shown by what it was called, if that can be read; nil: it is no guest's directory.
func (r *Registry) asideAs(id, dir string) *Guest {
	if uuid.Validate(id) != nil {
		return nil
	}
	rec, err := readRunRecord(dir)
	if err != nil || rec == nil || rec.UUID != id || domain.CheckName(rec.Name) != nil {
		rec = &runRecord{Name: id, UUID: id}
	}
	return r.adopted(rec)
}

// endQuarantine has a guest be what it is without its QEMU, which may be nothing, as soon as that has ended. Of one
// that cannot be found that is looked for again and again.
func (r *Registry) endQuarantine(g *Guest, dir string) {
	if process, err := r.findProcess(newRun(runRecord{UUID: g.uuid}, dir, r.Kernel, g.log)); err == nil && process != nil {
		select {
		case <-process.Exited():
		case <-r.life.Done():
		}
		process.Release()
	}
	_ = UntilDone(r.life, lastTry, func() error { // fails with the daemon's end
		over := false
		err := g.perform(r.life, scope.Daemon("the end of a guest in quarantine"), "", domain.JobDestroy, releaseLimit, func() (work, error) {
			if over = g.quarantine == ""; over {
				return nil, nil // its start has cleared all away
			}
			return func(ctx context.Context, sc scope.Scope) (settle, error) {
				if r.clear(ctx, dir) != nil {
					return nil, nil
				}
				return func() error {
					over = true
					g.log.Info("the QEMU of a guest that could not be adopted has ended")
					g.quarantine = ""
					g.forgetIfNothing()
					return nil
				}, nil
			}, nil
		})
		if err == nil && !over {
			err = errWithheld
		} else if errors.Is(err, errLeft) {
			err = nil
		}
		return err
	})
}
