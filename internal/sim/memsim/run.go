package memsim

// Run simulates a trace at one load factor. The trace may serve other runs at the same time.
func Run(tr *Trace, factor float64, setup *Setup) (Metrics, error) {
	p, err := setup.policy()
	if err != nil {
		return Metrics{}, err
	}
	w := newWorld(tr, factor, setup.amend)
	p.Begin(w)
	for range tr.Duration() {
		w.step(p)
	}
	return w.metrics.finish(tr), nil
}
