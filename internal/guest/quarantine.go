package guest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// quarantineGuest quarantines a guest that cannot be adopted: its QEMU is not ended, and the guest cannot be
// started beside it. If no QEMU runs, the run directory is removed instead.
func quarantineGuest(r *machine.Registry, dir string, cause error) {
	id := filepath.Base(dir)
	log := r.Log.With("uuid", id, "dir", dir)
	ctx, stop := context.WithTimeout(r.Life, machine.ReleaseLimit)
	defer stop()
	err := provision.ClearRunDir(ctx, r, dir)
	if err == nil {
		log.Error("run record of an ended guest cannot be used; resources of the guest may be left", "error", cause)
		return
	}
	log.Error("guest cannot be adopted; quarantined", "error", cause, "until", err)
	if g := quarantinedGuest(r, id, dir); g != nil {
		g.Quarantine = fmt.Sprintf("quarantined: this guest could not be adopted (%v); %v", cause, err)
		g.Publish()
		r.Loops.Go(func() { endQuarantine(r, g, dir) })
	}
}

// quarantinedGuest returns the guest of a quarantined run directory. If no record defines it, it is shown by the
// name in the run record, or else by its UUID. Nil: it is no guest's directory.
func quarantinedGuest(r *machine.Registry, id, dir string) *machine.Guest {
	if uuid.Validate(id) != nil {
		return nil
	}
	rec, err := machine.ReadRecord(dir)
	if err != nil || rec == nil || rec.UUID != id || domain.CheckName(rec.Name) != nil {
		rec = &machine.RunRecord{Name: id, UUID: id}
	}
	return adoptedGuest(r, rec)
}

// endQuarantine ends the quarantine when the QEMU has ended. The guest is then shut off, or forgotten if it
// has no definition. If the process cannot be found, it checks again and again.
func endQuarantine(r *machine.Registry, g *machine.Guest, dir string) {
	if process, err := findProcess(r, machine.NewInstance(machine.RunRecord{UUID: g.UUID}, dir, r.Kernel, g.Log)); err == nil && process != nil {
		select {
		case <-process.Exited():
		case <-r.Life.Done():
		}
		process.Release()
	}
	_ = machine.RetryUntilDone(r.Life, machine.MaxReleasePause, func() error { // fails when the daemon stops
		over := false
		err := g.Perform(r.Life, scope.Daemon("the end of a guest in quarantine"), "", domain.JobDestroy, machine.ReleaseLimit, func() (machine.Work, error) {
			if over = g.Quarantine == ""; over {
				return nil, nil // its start has removed everything
			}
			return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
				if provision.ClearRunDir(ctx, r, dir) != nil {
					return nil, nil
				}
				return func() error {
					over = true
					g.Log.Info("QEMU of a quarantined guest has ended")
					g.Quarantine = ""
					forgetIfUnused(g)
					return nil
				}, nil
			}, nil
		})
		if err == nil && !over {
			err = machine.ErrReleaseFailed
		} else if errors.Is(err, machine.ErrForgotten) {
			err = nil
		}
		return err
	})
}
