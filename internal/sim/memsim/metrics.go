package memsim

import (
	"math"
	"slices"
)

// Metrics says how a run went. Slowdowns are fractions; amounts of memory GiB·s or MiB as named.
type Metrics struct {
	// P99 is the 99th percentile of slowdown over all guest-seconds but the first 60 s of each guest, Bad the share of
	// those above 5 %, Worst the largest 99th percentile of one guest.
	P99, Bad, Worst float64
	// Unmet is working set that was not in memory, CacheUnmet useful cache that was not, both in GiB·s.
	Unmet, CacheUnmet float64
	// GuestSwapIn, HostSwapIn and HostSwapOut are MiB.
	GuestSwapIn, HostSwapIn, HostSwapOut float64
	// GuestKills and HostKills are OOM kills.
	GuestKills, HostKills int
	// Hot are seconds with more than 92 % of RAM used; Used is the mean use.
	Hot  int
	Used float64
	// Reversals of balloons per guest-hour, and those in steady phases (nil without such).
	Reversals       float64
	SteadyReversals *float64
	// FloorBroken are guest-seconds below the floor.
	FloorBroken int
	// Settle is the longest time from a step to the last slow second before the end of its hold, SettleBalloon to the
	// last second with a balloon away from its rest; nil without steps.
	Settle, SettleBalloon *float64
	// Moved is what balloons moved, in MiB.
	Moved float64
}

const (
	// hotUse is the use of RAM that counts as hot.
	hotUse = .92
	// floorSlack is how far a balloon may lie below the floor, in MiB.
	floorSlack = 1
	// warmUp seconds after a guest's first start do not count.
	warmUp = 60
	// worstLeast is how many seconds a guest must have to be the worst one.
	worstLeast = 100
	quantile   = .99
	// restSeconds at the end of a hold show where balloons rest; restShare of the size is still rest.
	restSeconds, restShare = 60, .02
	perGiB                 = 1.0 / 1024
)

// metrics gathers the metrics of one run.
type metrics struct {
	Metrics
	used float64
	// slowdowns is [guest*duration+second]; balloons the same, nil without steps. 32 bits as in the reference.
	slowdowns, balloons []float32
	legs                []leg
	steady              []bool
	reversals, inSteady int
}

func newMetrics(w *World) metrics {
	tr := w.trace
	m := metrics{
		slowdowns: make([]float32, tr.Duration()*len(w.guests)),
		legs:      make([]leg, len(w.guests)),
		steady:    make([]bool, tr.Duration()),
	}
	if len(tr.Host.Steps) > 0 {
		m.balloons = make([]float32, len(m.slowdowns))
	}
	for i := range m.legs {
		m.legs[i] = leg{least: max(legLeast, legShare*w.guests[i].spec.Max), extreme: w.guests[i].actual}
	}
	for _, phase := range tr.Host.Steady {
		for second := phase[0]; second < phase[1]; second++ {
			m.steady[second] = true
		}
	}
	return m
}

// take adds one second.
func (m *metrics) take(w *World) {
	steady := m.steady[w.second]
	if steady && (w.second == 0 || !m.steady[w.second-1]) {
		for i := range m.legs {
			m.restartLegs(i, w.guests[i].actual)
		}
	}
	for i := range w.guests {
		g := &w.guests[i]
		at := i*w.trace.Duration() + w.second
		m.slowdowns[at] = float32(g.slowdown)
		if m.balloons != nil {
			m.balloons[at] = float32(g.actual)
		}
		reversed := m.legs[i].move(g.actual)
		if !g.running {
			continue
		}
		m.takeGuest(g)
		if reversed {
			m.reversals++
			if steady {
				m.inSteady++
			}
		}
	}
	m.HostSwapIn += w.host.swapIn
	m.HostSwapOut += w.host.swapOut
	m.used += w.host.used
	if w.host.used > hotUse {
		m.Hot++
	}
}

func (m *metrics) takeGuest(g *guest) {
	m.Unmet += (g.swapped + g.unmet + g.hot) * perGiB
	m.CacheUnmet += max(g.useful-g.cache, 0) * perGiB
	m.GuestSwapIn += g.readBack + g.thrashed
	m.Moved += g.moved
	if g.actual < g.spec.Floor-floorSlack {
		m.FloorBroken++
	}
}

// A leg of a balloon's way counts from legLeast MiB, or legShare of the guest's size if that is more.
const legLeast, legShare = 32, .01

// leg follows a balloon to count its reversals: a way up and a way down, each at least of the leg's least length.
type leg struct {
	least     float64
	direction int8
	extreme   float64 // where the current leg is farthest
}

// move follows the balloon to actual, and reports a reversal.
func (l *leg) move(actual float64) bool {
	up, down := actual > l.extreme+l.least, actual < l.extreme-l.least
	reversed := up && l.direction < 0 || down && l.direction > 0
	switch {
	case up && l.direction <= 0:
		l.direction, l.extreme = 1, actual
	case down && l.direction >= 0:
		l.direction, l.extreme = -1, actual
	case l.direction > 0:
		l.extreme = max(l.extreme, actual)
	case l.direction < 0:
		l.extreme = min(l.extreme, actual)
	}
	return reversed
}

// restartLegs begins a new first leg at actual.
func (m *metrics) restartLegs(i int, actual float64) {
	m.legs[i].direction, m.legs[i].extreme = 0, actual
}

// finish computes what needs the whole run.
func (m *metrics) finish(tr *Trace) Metrics {
	duration := tr.Duration()
	m.Used = m.used / float64(duration)
	m.percentiles(tr)
	seconds := 0
	for i := range tr.Guests {
		from, to := tr.Guests[i].runs(duration, 0)
		seconds += to - from
	}
	m.Reversals = float64(m.reversals) / (float64(max(1, seconds)) / 3600)
	if len(tr.Host.Steady) > 0 {
		steady := 0
		for _, phase := range tr.Host.Steady {
			steady += phase[1] - phase[0]
		}
		rate := float64(m.inSteady) / (float64(max(1, steady)) / 3600 * float64(len(tr.Guests)))
		m.SteadyReversals = &rate
	}
	if m.balloons != nil {
		m.settle(tr)
	}
	return m.Metrics
}

// runs gives the seconds [from, to) of a guest, without the first warm ones.
func (g *Guest) runs(duration, warm int) (from, to int) {
	from, to = min(g.StartsAt+warm, duration), min(g.EndsAt, duration)
	return from, max(from, to)
}

func (m *metrics) percentiles(tr *Trace) {
	duration := tr.Duration()
	pooled := make([]float32, 0, len(m.slowdowns))
	scratch := make([]float32, duration)
	bad := 0
	for i := range tr.Guests {
		from, to := tr.Guests[i].runs(duration, warmUp)
		one := m.slowdowns[i*duration+from : i*duration+to]
		pooled = append(pooled, one...)
		for _, s := range one {
			if s > float32(Slow) {
				bad++
			}
		}
		if len(one) > worstLeast {
			m.Worst = max(m.Worst, float64(percentile(scratch[:copy(scratch, one)])))
		}
	}
	if len(pooled) > 0 {
		m.Bad = float64(bad) / float64(len(pooled))
		m.P99 = float64(percentile(pooled))
	}
}

// percentile is the 99th, on the line between the two nearest values. It reorders the values.
func percentile(values []float32) float32 {
	index := float64(len(values)-1) * quantile
	below := int(index)
	low := selectNth(values, below)
	if below+1 == len(values) {
		return low
	}
	high := slices.Min(values[below+1:])
	return low + float32(float64(high-low)*(index-float64(below)))
}

// selectNth gives the value that sorting would put at n, with all smaller ones before it (Hoare's quickselect).
func selectNth(values []float32, n int) float32 {
	low, high := 0, len(values)-1
	for low < high {
		pivot := values[low+(high-low)/2]
		i, j := low, high
		for i <= j {
			for values[i] < pivot {
				i++
			}
			for values[j] > pivot {
				j--
			}
			if i <= j {
				values[i], values[j] = values[j], values[i]
				i++
				j--
			}
		}
		switch {
		case n <= j:
			high = j
		case n >= i:
			low = i
		default:
			return values[n]
		}
	}
	return values[n]
}

// settle finds how long after a step the guests are slow, and the balloons move.
func (m *metrics) settle(tr *Trace) {
	duration, slow, moves := tr.Duration(), 0, 0
	for _, step := range tr.Host.Steps {
		end := duration
		for _, phase := range tr.Host.Steady {
			if phase[0] > step {
				end = phase[1]
				break
			}
		}
		for i := range tr.Guests {
			row := m.slowdowns[i*duration : (i+1)*duration]
			balloon := m.balloons[i*duration : (i+1)*duration]
			rest := float32(0)
			for _, actual := range balloon[end-restSeconds : end] {
				rest += actual
			}
			rest /= restSeconds
			for second := step; second < end; second++ {
				if row[second] > float32(Slow) {
					slow = max(slow, second-step+1)
				}
				if math.Abs(float64(balloon[second]-rest)) > restShare*tr.Guests[i].Max {
					moves = max(moves, second-step+1)
				}
			}
		}
	}
	settle, settleBalloon := float64(slow), float64(moves)
	m.Settle, m.SettleBalloon = &settle, &settleBalloon
}
