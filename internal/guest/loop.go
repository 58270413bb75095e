package guest

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

func newGuest(r *machine.Registry, name, uuid string) *machine.Guest {
	g := &machine.Guest{
		Reg:        r,
		UUID:       uuid,
		Log:        r.Log.With("domain", name, "uuid", uuid),
		Mailbox:    make(chan *machine.Task, machine.MailboxSize),
		Ended:      make(chan struct{}),
		Since:      time.Now(),
		Record:     machine.Record{Name: name},
		State:      lifecycle.State{Phase: domain.ShutOff, Reason: domain.ReasonUnknown},
		Turn:       time.NewTimer(machine.WaitForTurn),
		WriteRetry: time.NewTimer(machine.WriteRetryPause),
	}
	g.StatsCache = &machine.StatsCache{Sample: func(ctx context.Context, last *machine.Stats, thorough bool, early func(*machine.Stats)) (*machine.Stats, error) {
		return statistics.Measure(ctx, g, last, thorough, early)
	}}
	g.Turn.Stop()
	g.WriteRetry.Stop()
	g.Publish()
	return g
}

// loop runs until ctx ends or the guest is forgotten. It leaves the QEMU process running.
func loop(ctx context.Context, g *machine.Guest) {
	defer close(g.Ended)
	defer stopLoop(g)
	startWaiting(g) // an adopted guest may have work to finish
	for !g.Finished {
		if handleEvents(g) {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case e, ok := <-g.Instance.QEMUEvents():
			handleEvent(g, e, ok)
		case <-g.Instance.Exited():
			handleExit(g)
		case s := <-g.Instance.Reconnected():
			handleMonitorBack(g, s)
		case t := <-g.Mailbox:
			g.Accept(t)
		case o := <-g.CurrentJob.Outcome():
			settleJob(g, o)
		case <-g.Turn.C:
			g.Expire()
		case <-g.WriteRetry.C:
			g.WritePending()
		}
	}
}

// handleEvents handles one pending event of QEMU, so that events are handled before the requests and
// results that may depend on them.
func handleEvents(g *machine.Guest) bool {
	select {
	case e, ok := <-g.Instance.QEMUEvents():
		handleEvent(g, e, ok)
		return true
	default:
		return false
	}
}

// stopLoop ends what the loop began, when the daemon stops or the guest is forgotten. It answers waiting
// clients, cancels the current job, which may undo itself, and leaves the monitor to the next daemon.
func stopLoop(g *machine.Guest) {
	g.Finished = true
	g.Turn.Stop()
	g.WriteRetry.Stop()
	reason := machine.ErrGone(g.Name())
	for _, t := range append(g.Waiting, g.Destroyers...) {
		t.Answer(reason)
	}
	g.Waiting, g.Destroyers = nil, nil
	if g.CurrentJob != nil {
		g.CurrentJob.Cancel(reason)
		awaitJob(g, reason)
	}
	if g.Instance != nil {
		provision.DisconnectInstance(g.Instance)
	}
}

// awaitJob waits until the current job has undone itself. Requests of the job to the loop, such as to
// settle an image, are still served: otherwise the job would wait for the loop, and the loop for the job.
func awaitJob(g *machine.Guest, reason error) {
	late := time.NewTimer(machine.JobUndoPatience)
	defer late.Stop()
	for g.CurrentJob != nil {
		select {
		case o := <-g.CurrentJob.Done:
			settleJob(g, o)
		case t := <-g.Mailbox:
			if t.Kind != domain.JobNone || t.Later { // a client's request
				t.Answer(reason)
			} else {
				g.Begin(t)
			}
		case <-late.C:
			g.Log.Warn("job still running at the end of the daemon", "work", g.CurrentJob.Describe())
			return
		}
	}
}

// applyEffect carries out one effect of a lifecycle step. It runs in the loop.
func applyEffect(g *machine.Guest, e lifecycle.Effect) {
	switch e := e.(type) {
	case lifecycle.Announce:
		g.Announce(event.DomainChange{Change: e.Change, Detail: e.Detail})
	case lifecycle.AnnounceReboot:
		g.Announce(event.DomainReboot{})
	case lifecycle.End:
		g.Instance.End(machine.EndGracefully)
	case lifecycle.DumpCore:
		savestate.DumpCore(g)
	case lifecycle.ResetMachine:
		resetMachine(g)
	case lifecycle.RestartGuest:
		restartGuest(g, "QEMU ended unexpectedly: "+g.Restarts.Cause)
	case lifecycle.Forget:
		forget(g)
	}
}

// forget removes the guest from the registry and ends its loop.
func forget(g *machine.Guest) {
	recordLeftover(g.Reg, g.UUID, g.Record.Name, g.Log)
	g.Reg.HasStarted(g.UUID)
	g.Reg.UniqueIndex.Set(g.UUID, nil)
	g.Reg.Remove(g)
	g.AnswerDestroyers(nil) // it has ended, as they asked
	g.Finished = true
}

// settleJob handles the result of the work, answers its task and begins the next one.
func settleJob(g *machine.Guest, o machine.Outcome) {
	g.CatchUp()
	j := g.CurrentJob
	g.CurrentJob = nil
	j.Cancel(nil)
	err := o.Err
	if o.Settle != nil {
		if e := g.Recover("the completion of a request", o.Settle); err == nil {
			err = e
		}
	}
	g.NoteEnd(j, err)
	if err != nil {
		forgetIfUnused(g)
	}
	g.Publish()
	if err == nil && j.Task.Progress != nil && g.Instance.Ending() {
		// This save or dump ends the guest. Its client is answered once the guest has ended, as after a
		// destroy.
		g.Destroyers = append(g.Destroyers, j.Task)
	} else {
		j.Task.Answer(err)
	}
	startWaiting(g)
}

// startWaiting begins what waited for the end of the work: first the release, if the process has ended,
// then the waiting tasks in order.
func startWaiting(g *machine.Guest) {
	if g.CurrentJob != nil || g.Finished {
		return
	}
	if g.Instance.Gone() {
		beginRelease(g)
		return
	}
	if g.Instance.Ending() {
		return
	}
	g.AnswerDestroyers(nil)
	if g.Instance != nil && g.Instance.NeedsResync {
		startResync(g)
	}
	hotplug.ShrinkNodeList(g)
	for g.CurrentJob == nil && !g.Finished && len(g.Waiting) > 0 {
		t := g.Waiting[0]
		g.Waiting = g.Waiting[1:]
		if t.Ctx.Err() == nil {
			g.Begin(t)
		}
	}
}
