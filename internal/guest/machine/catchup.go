package machine

import (
	"time"
)

// catchUpPatience bounds how long the loop waits for events that QEMU has sent. They take microseconds,
// unless they were lost.
const catchUpPatience = 100 * time.Millisecond

// CatchUp handles the events that QEMU sent before it answered the work that has just ended. A client that
// has suspended a guest must see it suspended. It runs in the loop.
func (g *Guest) CatchUp() {
	r := g.Instance
	if r == nil || r.Events == nil {
		return
	}
	s := r.Session.Load()
	late := time.NewTimer(catchUpPatience)
	defer late.Stop()
	for sent := s.NewestEvent(); r.Events != nil && r.EventsSeen < sent; {
		select {
		case e, ok := <-r.Events:
			g.Reg.HandleEvent(g, e, ok)
		case <-late.C:
			r.EventsSeen = sent // they were lost: do not wait for them again
			return
		}
	}
}
