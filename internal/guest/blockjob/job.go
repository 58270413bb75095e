package blockjob

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A block job is a job in QEMU and an operation of the guest. QEMU's events name the job, and wake the
// operation.

// diskJob is the part of the journalled payload that all operations with a block job share.
type diskJob struct {
	Target string // the disk's target name, such as vda
	Job    string // its name in QEMU
	Path   string // the active image when the job begins
	Kind   string // commit, active-commit

	pivotAsked, cancelAsked atomic.Bool // a client has asked for it
	ready                   bool        // clients were told; only the operation uses it
	completed               bool        // the job had its effect; only the operation uses it
}

// copying is the name of the step that waits for QEMU, and then for a client's pivot.
const copying = "copy"

// diskJobber is the work of an operation with a block job.
type diskJobber interface{ job() *diskJob }

func (j *diskJob) job() *diskJob { return j }

// tell sends clients an event about the job.
func (j *diskJob) tell(r *machine.Instance, path, status string) {
	r.Reg.Events.Append(event.Source{Name: r.Name, UUID: r.UUID, ID: r.ID},
		event.DomainBlockJob{Path: path, Target: j.Target, Kind: j.Kind, Status: status})
}

// tellReady sends the event "ready" once per job.
func (j *diskJob) tellReady(r *machine.Instance) {
	if !j.ready {
		j.ready = true
		j.tell(r, j.Path, "ready")
	}
}

// tellEnd sends the event that says how a job ended. It sends none after the guest has ended, because that
// event suffices.
func (j *diskJob) tellEnd(r *machine.Instance, path string) {
	if provision.IsOver(r) {
		return
	}
	end := "failed"
	switch {
	case j.completed:
		end = "completed"
	case j.cancelAsked.Load():
		end = "canceled"
	}
	j.tell(r, path, end)
}

// diskJobs returns the first open block job for which the function which returns true. Nil: there is none.
func diskJobs(r *machine.Instance, which func(*diskJob) bool) (*operation.Operation, *diskJob) {
	for _, op := range r.Ops.Operations() {
		if w, is := op.Work().(diskJobber); is && which(w.job()) {
			return op, w.job()
		}
	}
	return nil, nil
}

// OnJobStatus wakes the operation of a job after a change of its status. It runs in the loop.
func OnJobStatus(g *machine.Guest, data json.RawMessage) {
	var e qemu.JobEvent
	if !g.Decode("JOB_STATUS_CHANGE", data, &e) {
		return
	}
	if op, _ := diskJobs(g.Instance, func(j *diskJob) bool { return j.Job == e.ID }); op != nil {
		g.Instance.Ops.Wake(op) // an operation that is about to wait looks once more
	}
}

// runningDisks returns the instance of a guest with an answering monitor. It runs in the loop.
func runningDisks(g *machine.Guest) (*machine.Instance, error) {
	if g.Instance == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	_, err := g.Instance.Monitor()
	return g.Instance, err
}

// jobOn returns the job on a disk, by target or path. op is nil if there is none.
func jobOn(ctx context.Context, g *machine.Guest, sc scope.Scope, disk string) (r *machine.Instance, op *operation.Operation, j *diskJob, err error) {
	err = g.Change(ctx, sc, "", func() (err error) {
		if r, err = runningDisks(g); err != nil {
			return err
		}
		d := statistics.FindDiskByName(r.Definition, disk)
		if d == nil {
			return refusedCall("disk '%s' not found in domain", disk)
		}
		op, j = diskJobs(r, func(j *diskJob) bool { return j.Target == d.Target })
		return nil
	})
	return r, op, j, err
}

func noJob(disk string) error { return refusedCall("disk %s does not have an active block job", disk) }

// EndBlockJob ends the job on a disk: with pivot so that it takes effect, otherwise without effect. With
// async it returns before the job has ended.
func EndBlockJob(ctx context.Context, g *machine.Guest, sc scope.Scope, disk string, pivot, async bool) error {
	if async {
		if _, _, _, err := endable(ctx, g, sc, disk, pivot); err != nil {
			return err
		}
		g.Reg.Loops.Go(func() { // an event tells clients of the end
			if err := endBlockJob(g.Reg.Life, g, sc.AlreadyAuthorized(), disk, pivot); err != nil {
				g.Log.Warn("a block job is not ended as a client asked", "disk", disk, "error", err)
			}
		})
		return nil
	}
	return endBlockJob(ctx, g, sc, disk, pivot)
}

// endable finds the job on a disk, and returns an error if it cannot be ended now.
func endable(ctx context.Context, g *machine.Guest, sc scope.Scope, disk string, pivot bool) (*machine.Instance, *operation.Operation, *diskJob, error) {
	r, op, j, err := jobOn(ctx, g, sc, disk)
	switch {
	case err != nil:
	case op == nil:
		err = noJob(disk)
	case op.Status().State == operation.Owed || op.Status().Step != copying:
		err = fault.New(fault.WrongState, fault.Domain, "block job on disk '%s' is still being ended", j.Target)
	case pivot: // a kind of job without a pivot never becomes ready
		var job *qemu.Job
		if job, err = findJob(ctx, r, j.Job); err == nil && (job == nil || job.Status != qemu.JobReady) {
			err = fault.New(fault.Busy, fault.Device, "block job '%s' not ready for pivot yet", j.Job)
		}
	}
	return r, op, j, err
}

// endBlockJob ends the job on a disk and waits for its end. A pivot first checks that the store takes
// changes.
func endBlockJob(ctx context.Context, g *machine.Guest, sc scope.Scope, disk string, pivot bool) error {
	return g.Perform(ctx, sc, "", domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
		if pivot && g.Inactive != nil { // otherwise the guest would own the base, and no definition could say so
			if err := g.StoreAhead(); err != nil {
				return nil, err
			}
		}
		return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
			r, op, j, err := endable(ctx, g, sc, disk, pivot)
			if err != nil {
				return nil, err
			}
			if pivot {
				j.pivotAsked.Store(true)
				return nil, r.Advance(ctx, op)
			}
			return nil, abortJob(ctx, op, j)
		}, nil
	})
}

// abortJob ends a job without its effect.
func abortJob(ctx context.Context, op *operation.Operation, j *diskJob) error {
	j.cancelAsked.Store(true)
	aborted := fault.New(fault.Aborted, fault.Device, "the block job on disk '%s' was aborted by a client", j.Target)
	could, err := op.Abort(ctx, aborted)
	switch {
	case !could:
		return fault.New(fault.WrongState, fault.Domain, "block job on disk '%s' is still being ended", j.Target)
	case op.Status().State == operation.Ended:
		return nil
	}
	return err
}

// Status is the progress of a job on a disk.
type Status struct {
	Kind        string // commit, active-commit
	Speed       uint64 // at most this many bytes a second; 0: no limit
	Done, Total uint64 // bytes; equal only when the job is ready
}

// QueryJob returns the progress of the job on a running guest's disk. found is false if there is none.
func QueryJob(ctx context.Context, g *machine.Guest, sc scope.Scope, disk string) (b Status, found bool, err error) {
	r, op, j, err := jobOn(ctx, g, sc, disk)
	if err != nil || op == nil {
		return b, false, err
	}
	s, err := r.Monitor()
	if err != nil {
		return b, false, err
	}
	var jobs []qemu.BlockJob
	if err := s.Execute(ctx, "query-block-jobs", nil, &jobs); err != nil {
		return b, false, err
	}
	b = Status{Kind: j.Kind, Total: 1}
	if i := slices.IndexFunc(jobs, func(one qemu.BlockJob) bool { return one.Device == j.Job }); i >= 0 {
		one := jobs[i]
		b.Speed, b.Done, b.Total = one.Speed, one.Offset, one.Len
		switch {
		case b.Total == 0: // QEMU has not begun, or there was nothing to copy
			b.Total = 1
			if one.Ready {
				b.Done = 1
			}
		case b.Done == b.Total && !one.Ready: // clients take equal figures for a job that is ready
			b.Done--
		}
	}
	return b, true, nil
}

// SetBlockJobSpeed limits the job on a disk to speed bytes a second. 0 removes the limit.
func SetBlockJobSpeed(ctx context.Context, g *machine.Guest, sc scope.Scope, disk string, speed uint64) error {
	r, op, j, err := jobOn(ctx, g, sc, disk)
	if err != nil {
		return err
	}
	if op == nil {
		return noJob(disk)
	}
	return hotplug.Tell(ctx, r, []qemu.Step{qemu.SetJobSpeed(j.Job, speed)})
}

// findJob asks QEMU for the job of that name. Nil: there is none.
func findJob(ctx context.Context, r *machine.Instance, name string) (*qemu.Job, error) {
	s, err := r.Monitor()
	if err != nil {
		return nil, err
	}
	var jobs []qemu.Job
	if err := s.Execute(ctx, "query-jobs", nil, &jobs); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(jobs, func(j qemu.Job) bool { return j.ID == name }); i >= 0 {
		return &jobs[i], nil
	}
	return nil, nil
}

// awaitJob waits until a job has one of the statuses, or is gone (nil).
func awaitJob(ctx context.Context, r *machine.Instance, name string, statuses ...qemu.JobStatus) (*qemu.Job, error) {
	for wait := machine.FirstLook; ; wait = min(2*wait, machine.LastLook) {
		job, err := findJob(ctx, r, name)
		if err != nil || job == nil || slices.Contains(statuses, job.Status) {
			return job, err
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, fault.Wrap(context.Cause(ctx), fault.Unresponsive, fault.Monitor, "QEMU's job %s stays %s", name, job.Status)
		}
	}
}

// completeJob brings a ready job to pending. It returns the job's state after that.
func completeJob(ctx context.Context, r *machine.Instance, name string) (*qemu.Job, error) {
	return advanceJob(ctx, r, name, qemu.JobReady, qemu.CompleteJob(name), qemu.JobPending, qemu.JobConcluded)
}

// finalizeJob lets a pending job change the chain. It returns the job's state after that.
func finalizeJob(ctx context.Context, r *machine.Instance, name string) (*qemu.Job, error) {
	return advanceJob(ctx, r, name, qemu.JobPending, qemu.FinalizeJob(name), qemu.JobConcluded)
}

// advanceJob sends step if the job has status in, and waits until it has one of the other statuses.
func advanceJob(ctx context.Context, r *machine.Instance, name string, in qemu.JobStatus, step qemu.Step, until ...qemu.JobStatus) (*qemu.Job, error) {
	job, err := findJob(ctx, r, name)
	if err == nil && job != nil && job.Status == in {
		err = hotplug.Tell(ctx, r, []qemu.Step{step})
	}
	if err != nil || job == nil {
		return nil, err
	}
	return awaitJob(ctx, r, name, until...)
}

// cancelJob ends a job without its effect and removes it from QEMU.
func cancelJob(ctx context.Context, r *machine.Instance, name string) error {
	job, err := findJob(ctx, r, name)
	if err != nil || job == nil {
		return err
	}
	if job.Status != qemu.JobConcluded {
		if err := hotplug.Tell(ctx, r, []qemu.Step{qemu.CancelJob(name)}); machine.NoAnswer(err) {
			return err
		} else if err != nil { // it is ending on its own
			r.Log.Debug("a job cannot be cancelled", "job", name, "cause", err)
		}
	}
	if _, err := awaitJob(ctx, r, name, qemu.JobConcluded); err != nil {
		return err
	}
	return dismissJob(ctx, r, name)
}

// dismissJob removes a concluded job from QEMU.
func dismissJob(ctx context.Context, r *machine.Instance, name string) error {
	job, err := findJob(ctx, r, name)
	if err != nil || job == nil {
		return err
	}
	return hotplug.Tell(ctx, r, []qemu.Step{qemu.DismissJob(name)})
}

// ImageObject names an image as an object of operations. QEMU cannot be given write access to an image that
// it has yet to close.
func ImageObject(number uint) string { return fmt.Sprintf("image/%d", number) }

// takeBackImages withdraws QEMU's write access to images. An image that QEMU keeps open until its guest
// runs is left to a cleanup.
func takeBackImages(ctx context.Context, r *machine.Instance, sc scope.Scope, all []machine.Written) error {
	for _, w := range all {
		if r.Guest == nil || provision.IsOver(r) { // the labels are restored when the guest ends
			if err := provision.ForgetNote(ctx, w); err != nil {
				return err
			}
			continue
		}
		kept, err := provision.TakeBackToRead(ctx, r.Guest, sc, r, w)
		if err == nil && kept {
			err = cleanUpLater(r, w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// emptySet closes the descriptors that QEMU was lent for an image which the guest writes to from now on.
func emptySet(ctx context.Context, r *machine.Instance, w machine.Written) error {
	s, err := r.Monitor()
	if err != nil {
		return err
	}
	kept, err := provision.TakeBackFiles(ctx, s, w.Number)
	if err == nil && kept {
		err = cleanUpLater(r, w)
	}
	return err
}

// cleanUpLater begins a cleanup that closes what QEMU was lent for an image, once the guest runs.
func cleanUpLater(r *machine.Instance, w machine.Written) error {
	return Follow(r, &hotplug.CleanupOp{R: r, Lent: []machine.Written{w}}, ImageObject(w.Number))
}

// Follow begins a cleanup, unless an earlier attempt has begun the same one.
func Follow(r *machine.Instance, c *hotplug.CleanupOp, object string) error {
	if r.Ops.Find(hotplug.CleanupKind.Name, object) != nil {
		return nil
	}
	op, err := r.Ops.Follow(scope.Daemon("giving back what a device leaves"), hotplug.CleanupKind.Name, c, operation.Record{Objects: []string{object}})
	if err == nil {
		r.Ops.Wake(op)
	}
	return err
}

// dropImages closes in QEMU the images that a job has removed from a chain, from the top down.
func dropImages(ctx context.Context, r *machine.Instance, all []machine.Written) error {
	if !provision.IsOver(r) {
		kept, err := closeDropped(ctx, r, all)
		if err != nil || kept {
			return err
		}
	}
	for _, w := range all {
		if err := provision.ForgetNote(ctx, w); err != nil {
			r.Log.Warn("cannot remove the note about an image", "path", w.Path, "error", err)
		}
	}
	return nil
}

// closeDropped closes images in QEMU and restores their labels. kept means that a cleanup does this later,
// with all that follows.
func closeDropped(ctx context.Context, r *machine.Instance, all []machine.Written) (kept bool, err error) {
	s, err := r.Monitor()
	if err != nil {
		return false, err
	}
	numbers, nodes := make([]uint, len(all)), make([]hotplug.Undoing, len(all))
	for i, w := range all {
		numbers[i] = w.Number
		if nodes[i], err = hotplug.NewUndoing(qemu.RemoveImage(w.Number)); err != nil {
			return false, err
		}
	}
	if err := hotplug.RemoveAll(ctx, r, s, nodes); err != nil {
		return false, err
	}
	by := filelabel.ImageOwner(numbers...)
	if kept, err = hotplug.ForgetImages(ctx, s, numbers); kept {
		return true, Follow(r, &hotplug.CleanupOp{R: r, Images: numbers, Lent: all, For: by}, by)
	} else if err != nil {
		return false, err
	}
	if err := r.Labels.GiveBack(ctx, by); err != nil {
		r.Log.Warn("cannot restore the label of a committed image", "error", err)
	}
	return false, nil
}
