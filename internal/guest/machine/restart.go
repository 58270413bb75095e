package machine

import (
	"fmt"
	"time"
)

// FirstPause is how long the first try after a failure waits.
const FirstPause = time.Second

// Restarts holds a guest's crashes and its pending start.
type Restarts struct {
	Boot      bool // the pending start is one at boot, without a crash
	Crashes   int  // crashes without a steady run in between; or failed starts at boot
	LastCrash time.Time
	Cause     string // how the last process ended
	Message   string // for an administrator; empty: no crash
	Cancel    func() // nil: no start is pending
}

// Stop cancels the pending start.
func (v *Restarts) Stop() {
	if v.Cancel != nil {
		v.Cancel()
		v.Cancel = nil
	}
}

// CancelRestart cancels a pending start and leaves the guest shut off. It runs in the loop.
func (g *Guest) CancelRestart() {
	g.Restarts.Stop()
	g.Restarts = Restarts{}
	g.Reg.HasStarted(g.UUID)
	g.Publish()
}

// NoteRestarted records that the guest runs again.
func (g *Guest) NoteRestarted() {
	v := &g.Restarts
	if v.Boot {
		v.Stop()
		*v = Restarts{}
	}
	if v.Cancel == nil {
		return
	}
	v.Stop()
	v.Message = fmt.Sprintf("started again after its QEMU had ended unexpectedly (crash %d in a row, at %s)", v.Crashes, v.LastCrash.UTC().Format(time.TimeOnly+" MST"))
}
