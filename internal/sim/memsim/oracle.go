package memsim

import "sync"

// oracle knows the future: the true need of each guest in the next 45 s. It gives all guests the highest level that
// fits, from "5 % slower, right now" to "no slowdown for 45 s". It is a clairvoyant heuristic, no optimum; it keeps
// floors and waits for balloons as others do.
type oracle struct {
	w      *World
	levels [][]float64 // by level; each [second*guests+guest], MiB
	sizes  [][]float64 // of this second, by level
	totals []float64   // their sums
}

const (
	oracleUse     = .985 // of RAM
	oracleKSM     = .9   // share of KSM's saving that is counted on
	oracleSurplus = .3   // share of the rest that is given out, by size
)

// oracleForecast is one level: the largest need of the next seconds, and a margin.
type oracleForecast struct {
	full   bool // the memory for no slowdown, instead of that for 5 %
	ahead  int  // s
	margin float64
}

var oracleLevels = []oracleForecast{{ahead: 1, margin: 1.002}, {ahead: 6, margin: 1.002}, {ahead: 20, margin: 1.005}, {ahead: 45, margin: 1.01}, {ahead: 45, margin: 1.02, full: true}}

// nowLevels are those of a manager that sees the present only.
var nowLevels = []oracleForecast{{margin: 1}, {margin: 1, full: true}, {margin: 1.03, full: true}}

// oracleForecasts keeps a trace's forecasts: all runs of a trace share them.
type oracleForecasts struct {
	oracle, now     sync.Once
	ofOracle, ofNow [][]float64
}

func (tr *Trace) oracleForecasts() [][]float64 {
	tr.forecasts.oracle.Do(func() { tr.forecasts.ofOracle = tr.forecast(oracleLevels) })
	return tr.forecasts.ofOracle
}

func (tr *Trace) nowForecasts() [][]float64 {
	tr.forecasts.now.Do(func() { tr.forecasts.ofNow = tr.forecast(nowLevels) })
	return tr.forecasts.ofNow
}

func (tr *Trace) forecast(levels []oracleForecast) [][]float64 {
	all := make([][]float64, len(levels))
	for k, level := range levels {
		need := tr.need
		if level.full {
			need = tr.full
		}
		all[k] = make([]float64, len(need))
		for i := range tr.Guests {
			largestAhead(all[k][i:], need[i:], len(tr.Guests), level)
		}
	}
	return all
}

// largestAhead fills to with the largest of from's next values. Both have one value each stride.
func largestAhead(to, from []float64, stride int, level oracleForecast) {
	// Seconds with values that fall: later ones that are at least as large hide the earlier ones.
	var falling []int
	last := (len(from) - 1) / stride
	next := 0
	for second := 0; second <= last; second++ {
		for ; next <= min(second+level.ahead, last); next++ {
			for len(falling) > 0 && from[falling[len(falling)-1]*stride] <= from[next*stride] {
				falling = falling[:len(falling)-1]
			}
			falling = append(falling, next)
		}
		for falling[0] < second {
			falling = falling[1:]
		}
		to[second*stride] = from[falling[0]*stride] * level.margin
	}
}

func (o *oracle) Begin(w *World) { o.begin(w, w.trace.oracleForecasts()) }

func (o *oracle) begin(w *World, levels [][]float64) {
	o.w, o.levels = w, levels
	o.sizes = make([][]float64, len(levels))
	o.totals = make([]float64, len(levels))
	for k := range o.sizes {
		o.sizes[k] = make([]float64, len(w.guests))
	}
}

func (o *oracle) Step(second int) { o.decide(second) }

// decide sets the targets by the forecasts of a second. It gives the budget.
func (o *oracle) decide(second int) float64 {
	host := o.w.Host()
	inert := 0.0
	clear(o.totals)
	for i := range o.w.guests {
		g := &o.w.guests[i]
		if g.running && !g.manageable() {
			inert += g.resident()
		}
		for k := range o.levels {
			o.sizes[k][i] = 0
			if g.manageable() {
				need := o.levels[k][second*len(o.w.guests)+i]
				o.sizes[k][i] = min(max(need, g.spec.Floor), g.spec.Max)
				o.totals[k] += o.sizes[k][i]
			}
		}
	}
	budget := oracleUse*host.RAM - host.Reserved + oracleKSM*host.KSMSaving - inert
	level, share := o.level(budget)
	held := 0.0
	for i := range o.w.guests {
		held += o.size(i, level, share)
	}
	left := max(0, budget-held)
	for i := range o.w.guests {
		if g := &o.w.guests[i]; g.manageable() {
			size := o.size(i, level, share)
			size += left * oracleSurplus * size / max(held, 1)
			o.w.SetTarget(i, min(max(size, g.spec.Floor), g.spec.Max))
		}
	}
	return budget
}

// manageable tells a guest with a balloon that works, as the host cannot know.
func (g *guest) manageable() bool { return g.running && g.spec.Coop == cooperates }

// level finds the highest level that fits, and the share of the way from it to the next one. Level -1: not even the
// lowest one fits, and all get the same share of that.
func (o *oracle) level(budget float64) (level int, share float64) {
	level, share = -1, min(1, budget/max(o.totals[0], 1))
	for k := range len(o.levels) - 1 {
		if budget >= o.totals[k] {
			level, share = k, clampShare((budget-o.totals[k])/max(o.totals[k+1]-o.totals[k], tiny))
		}
	}
	return level, share
}

func (o *oracle) size(i, level int, share float64) float64 {
	if level < 0 {
		return o.sizes[0][i] * share
	}
	return o.sizes[level][i] + (o.sizes[level+1][i]-o.sizes[level][i])*share
}
