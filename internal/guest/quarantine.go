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

// setAside quarantines a guest that cannot be adopted: its QEMU is not ended, and the guest cannot be
// started beside it. If no QEMU runs, the run directory is removed instead.
func (r *Registry) setAside(dir string, cause error) {
	id := filepath.Base(dir)
	log := r.log.With("uuid", id, "dir", dir)
	ctx, stop := context.WithTimeout(r.life, releaseLimit)
	defer stop()
	err := r.clear(ctx, dir)
	if err == nil {
		log.Error("run record of an ended guest cannot be used; resources of the guest may be left", "error", cause)
		return
	}
	log.Error("guest cannot be adopted; quarantined", "error", cause, "until", err)
	if g := r.asideAs(id, dir); g != nil {
		g.quarantine = fmt.Sprintf("quarantined: this guest could not be adopted (%v); %v", cause, err)
		g.publish()
		r.loops.Go(func() { r.endQuarantine(g, dir) })
	}
}

// asideAs returns the guest of a quarantined run directory. If no record defines it, it is shown by the
// name in the run record, or else by its UUID. Nil: it is no guest's directory.
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

// endQuarantine ends the quarantine when the QEMU has ended. The guest is then shut off, or forgotten if it
// has no definition. If the process cannot be found, it checks again and again.
func (r *Registry) endQuarantine(g *Guest, dir string) {
	if process, err := r.findProcess(newRun(runRecord{UUID: g.uuid}, dir, r.Kernel, g.log)); err == nil && process != nil {
		select {
		case <-process.Exited():
		case <-r.life.Done():
		}
		process.Release()
	}
	_ = UntilDone(r.life, lastTry, func() error { // fails when the daemon stops
		over := false
		err := g.perform(r.life, scope.Daemon("the end of a guest in quarantine"), "", domain.JobDestroy, releaseLimit, func() (work, error) {
			if over = g.quarantine == ""; over {
				return nil, nil // its start has removed everything
			}
			return func(ctx context.Context, sc scope.Scope) (settle, error) {
				if r.clear(ctx, dir) != nil {
					return nil, nil
				}
				return func() error {
					over = true
					g.log.Info("QEMU of a quarantined guest has ended")
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
