package launch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// runSteps runs steps in order, all of them within limit (0: no limit). It also ends, between two steps, when
// ctx does.
func runSteps(ctx context.Context, limit time.Duration, steps ...func(context.Context) error) error {
	if limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, fault.New(fault.Timeout, fault.Domain, "it did not complete within %v", limit))
		defer stop()
	}
	for _, step := range steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := step(ctx); err != nil {
			if errors.Is(err, ctx.Err()) {
				return context.Cause(ctx) // the cause says who ended it, and why
			}
			return err
		}
	}
	return nil
}

// limit bounds the last steps. Loading a saved image has no bound: the user can destroy the guest.
func (l *Launch) limit() time.Duration {
	if l.From != nil {
		return 0
	}
	return machine.StartLimit
}

// runAdmitted waits until the host can take one more launch, and runs QEMU until its monitor answers. The
// wait has no bound: the queue is visible and moves, and a user who does not want to wait destroys the
// guest.
func (l *Launch) runAdmitted(ctx context.Context) error {
	release, err := l.Guest.Reg.Starts.Admit(ctx, l.startRequest())
	if err != nil {
		return fmt.Errorf("it was not admitted: %w", err)
	}
	var o resources.LaunchOutcome
	defer func() { release(o) }()
	if err := runSteps(ctx, machine.StartLimit, l.runQEMU, l.connectMonitor); err != nil {
		return err
	}
	o.PID = l.Instance.PID
	l.Guest.Reg.Ledger.Started(l.Instance.UUID)
	return nil
}

// startRequest returns what a start needs of the host's memory. Huge pages are not counted: the ledger has
// them already, and they are never free memory. A restored guest touches its memory even if it stays
// paused, so it does not count as paused.
func (l *Launch) startRequest() resources.StartRequest {
	def := l.Instance.Definition
	return resources.StartRequest{
		Guest: def.UUID, Name: def.Name, Memory: provision.Demand(def).Memory, Paused: l.opts.Paused && l.From == nil, Priority: l.opts.Priority,
		Whole: def.Backing.Locked || def.Backing.Allocation == "immediate" || len(def.Devices.HostDevices) > 0,
	}
}

// checkHost refuses, before anything is made, a guest that needs CPUs, cells or lockable memory that this
// host does not have.
func (l *Launch) checkHost(context.Context) error {
	if err := provision.CheckPins(l.Guest.Reg, &domain.Definition{}, l.Instance.Definition); err != nil {
		return err
	}
	return l.checkLocked()
}

// checkLocked refuses a guest if its memory cannot be locked because the daemon's own limit is too low.
func (l *Launch) checkLocked() error {
	def := l.Instance.Definition
	if !def.Backing.Locked || l.Guest.Reg.Isolation == nil {
		return nil
	}
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &own); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot tell how much memory may be locked")
	}
	if own.Max < def.Memory || def.MemTune.HardLimit != 0 && def.MemTune.HardLimit < def.Memory {
		return l.memlockError()
	}
	return nil
}

// memlockError returns an error that says why the guest's memory cannot be locked, and what to do.
func (l *Launch) memlockError() error {
	def := l.Instance.Definition
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &own); err == nil && own.Max < min(provision.MaxLocked(def), 2*def.Memory+provision.LockedBeside) {
		return fault.New(fault.NoCapacity, fault.Host,
			"the domain's memory of %d MiB must be locked (<memoryBacking><locked/>), and the daemon may let guests lock only %d MiB: "+
				"raise its limit (LimitMEMLOCK=infinity in its unit), or remove <locked/>", def.Memory>>20, own.Max>>20)
	}
	if limit := def.MemTune.HardLimit; limit != 0 {
		return fault.New(fault.NoCapacity, fault.Config,
			"the domain's memory of %d MiB must be locked (<memoryBacking><locked/>), and its hard_limit of %d MiB is too small for that memory and QEMU's own: "+
				"raise <memtune><hard_limit>, or remove <locked/>", def.Memory>>20, limit>>20)
	}
	return fault.New(fault.NoCapacity, fault.Host,
		"the domain's memory of %d MiB must be locked (<memoryBacking><locked/>), and the host lacks free memory: free some, or remove <locked/>", def.Memory>>20)
}
