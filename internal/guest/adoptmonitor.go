package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// connectedMonitor is a monitor that answered, with QEMU's answers.
type connectedMonitor struct {
	session *qmp.Session
	state   *qemuState
}

// connectMonitor connects an adopted guest to its monitor and corrects the guest's state by QEMU's answers. It
// runs before the loop and waits only as long as the adoption does. A monitor that answers later is handed
// to the loop.
func (r *adoption) connectMonitor(g *machine.Guest, run *machine.Instance) {
	reached := make(chan *connectedMonitor, 1)
	def := run.Definition // the loop may change it before QEMU answers
	go func() { reached <- dialMonitor(r.Life, run, def) }()
	select {
	case c := <-reached:
		if c == nil {
			onMonitorLost(g)
			return
		}
		run.Connect(c.session)
		correctState(g, c.state, g.State.Phase)
		run.NeedsResync = run.Resuming || len(run.Ops.Operations()) > 0 // the loop finishes these later
		r.reached <- struct{}{}
	case <-r.patience.Done():
		g.Log.Warn("monitor not responding; guest adopted without it", "pid", run.PID)
		run.MonitorLost()
		g.Publish()
		go connectMonitorLate(g, run, reached)
	}
}

// dialMonitor connects to QEMU and asks for missed changes, within lastRetry. It returns nil if either fails.
func dialMonitor(ctx context.Context, r *machine.Instance, def *domain.Definition) *connectedMonitor {
	s := tryDial(ctx, r)
	if s == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, lastRetry)
	defer stop()
	found, err := queryState(ctx, s, def)
	if err != nil {
		r.Log.Debug("QEMU does not answer queries about missed events", "error", err)
		s.Close()
		return nil
	}
	return &connectedMonitor{s, found}
}

// connectMonitorLate hands the loop a monitor that answered too late for the adoption.
func connectMonitorLate(g *machine.Guest, r *machine.Instance, reached <-chan *connectedMonitor) {
	if c := <-reached; c != nil {
		passSession(g, r, c.session)
		return
	}
	reconnectMonitor(g, r, firstRetry)
}

// repeatStop repeats a stop that an earlier daemon began, whether the monitor answers or not. A guest with
// AutoDestroy is ended, because its client's connection ended with the earlier daemon.
func repeatStop(g *machine.Guest) {
	if g.Instance.AutoDestroy && g.State.EndFor == "" {
		g.Advance(lifecycle.Ending{Reason: domain.ReasonDestroyed})
	}
	switch g.State.EndFor {
	case "":
	case domain.ReasonDestroyed, domain.ReasonSaved:
		g.Instance.End(machine.EndNow)
	default:
		g.Instance.End(machine.EndGracefully)
	}
}
