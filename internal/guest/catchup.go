package guest

import "time"

// catchUpPatience bounds how long the loop waits for events that are on their
// way to it: a matter of microseconds, unless they were lost.
const catchUpPatience = 100 * time.Millisecond

// catchUp takes in what QEMU told before it answered the work that has just
// ended: whoever suspended a guest must find it suspended. It runs in the loop.
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
			r.seen = sent // they were lost; do not wait for them again
			return
		}
	}
}
