package memsim

// now knows the true need of each guest in the last second, and nothing of the future: what a manager with perfect
// sight could do. It gives out all memory.
type now struct{ oracle }

func (n *now) Begin(w *World) { n.begin(w, w.trace.nowForecasts()) }

func (n *now) Step(second int) {
	left := n.decide(max(second-1, 0))
	lacking := 0.0
	for i := range n.w.guests {
		if g := &n.w.guests[i]; g.manageable() {
			left -= g.target
			lacking += g.spec.Max - g.target
		}
	}
	share := min(1, max(0, left)/max(lacking, 1))
	for i := range n.w.guests {
		if g := &n.w.guests[i]; g.manageable() {
			n.w.SetTarget(i, g.target+(g.spec.Max-g.target)*share)
		}
	}
}
