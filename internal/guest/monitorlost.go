package guest

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
)

// Delays between attempts to reconnect: short at first, then doubled up to lastRetry.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	// steadySession is how long a session must have lasted for the next delay to be short again. A QEMU that
	// closes session after session is reconnected less and less often.
	steadySession = time.Minute
)

// onMonitorLost records that the monitor is lost while the process lives. It keeps reconnecting as long as
// the process lives, because a guest without a monitor still runs.
func onMonitorLost(g *machine.Guest) {
	r := g.Instance
	if time.Since(r.ReachedAt) > steadySession {
		r.Patience = 0
	}
	r.Patience = min(max(2*r.Patience, firstRetry), lastRetry)
	r.MonitorLost()
	g.Publish()
	go reconnectMonitor(g, r, r.Patience)
}

// reconnectMonitor reconnects to the monitor and hands the session to the loop. It ends with the process or the
// guest.
func reconnectMonitor(g *machine.Guest, r *machine.Instance, wait time.Duration) {
	for ; ; wait = min(2*wait, lastRetry) {
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-r.Process.Exited():
			return
		case <-g.Ended:
			return
		}
		s := tryDial(g.Reg.Life, r)
		if s == nil {
			continue
		}
		passSession(g, r, s)
		return
	}
}

// passSession gives the loop a new session, or closes it if the process or the guest has ended.
func passSession(g *machine.Guest, r *machine.Instance, s *qmp.Session) {
	select {
	case r.NewSessions <- s:
	case <-r.Process.Exited():
		s.Close()
	case <-g.Ended:
		s.Close()
	}
}

// tryDial tries once, for at most lastRetry, to connect to the monitor.
func tryDial(ctx context.Context, r *machine.Instance) *qmp.Session {
	ctx, stop := context.WithTimeout(ctx, lastRetry)
	defer stop()
	s, err := qmp.Dial(ctx, r.MonitorPath(), r.Log)
	if err != nil {
		r.Log.Debug("cannot reach the monitor yet", "error", err)
		return nil
	}
	return s
}

// handleMonitorBack takes over a new session and asks QEMU for missed changes.
func handleMonitorBack(g *machine.Guest, s *qmp.Session) {
	g.Instance.Connect(s)
	g.Publish()
	g.Log.Info("monitor reconnected")
	resync(g)
}
