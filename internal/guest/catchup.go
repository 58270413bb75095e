package guest

import "time"

// catchUpPatience bounds how long the loop waits for events that QEMU has sent. They take microseconds,
// unless they were lost.
const catchUpPatience = 100 * time.Millisecond

// catchUp handles the events that QEMU sent before it answered the work that has just ended. A client that
// has suspended a guest must see it suspended. It runs in the loop.
func (g *Guest) catchUp() {
	r := g.run
	if r == nil || r.events == nil {
		return
	}
	s := r.session.Load()
	late := time.NewTimer(catchUpPatience)
	defer late.Stop()
	for sent := s.Sent(); r.events != nil && r.seen < sent; {
		select {
		case e, ok := <-r.events:
			g.reg.handleEvent(g, e, ok)
		case <-late.C:
			r.seen = sent // they were lost: do not wait for them again
			return
		}
	}
}
