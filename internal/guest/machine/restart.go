package machine

import (
	"fmt"
	"time"
)

// FirstPause is how long the first try after a failure waits.
const FirstPause = time.Second

// Revival holds a guest's crashes and its pending start.
type Revival struct {
	Boot    bool // the pending start is one at boot, without a crash
	Crashes int  // crashes without a steady run in between; or failed starts at boot
	Last    time.Time
	Cause   string // how the last process ended
	Words   string // for an administrator; empty: no crash
	Cancel  func() // nil: no start is pending
}

// Stop cancels the pending start.
func (v *Revival) Stop() {
	if v.Cancel != nil {
		v.Cancel()
		v.Cancel = nil
	}
}

// GiveUpRevival cancels a pending start and leaves the guest shut off. It runs in the loop.
func (g *Guest) GiveUpRevival() {
	g.Revival.Stop()
	g.Revival = Revival{}
	g.Reg.HasStarted(g.Identity)
	g.Publish()
}

// Revived records that the guest runs again.
func (g *Guest) Revived() {
	v := &g.Revival
	if v.Boot {
		v.Stop()
		*v = Revival{}
	}
	if v.Cancel == nil {
		return
	}
	v.Stop()
	v.Words = fmt.Sprintf("started again after its QEMU had ended unexpectedly (crash %d in a row, at %s)", v.Crashes, v.Last.UTC().Format(time.TimeOnly+" MST"))
}
