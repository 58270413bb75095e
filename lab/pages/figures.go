package pages

import (
	"maps"
	"math"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// figure is one thing that was measured of an arm at a step, with a value for
// each repetition that has it.
type figure struct {
	name   figureName
	unit   string
	values map[int]float64
}

// figureName tells figures of a run apart.
type figureName struct {
	kind string // throughput, p99, boot: of one kind, figures are read together
	of   string // a load with its role and operation, a guest, an event, the host
	op   string // of those, the operation; all for a whole load, and for what has none
	step string
	arm  string
}

// kinds are those of figures, in the order in which they are shown.
var kinds = []string{
	"throughput", "served of offered", "bytes a second", "mean", "p50", "p95", "p99", "p99.9",
	"service mean", "service p50", "service p95", "service p99", "service p99.9",
	"outage", "errors", "boot", "time", "drift", "use",
}

// gathering makes figures of values that come one by one.
type gathering struct {
	units  map[figureName]string
	values map[figureName]map[int][]float64
}

func (g *gathering) add(name figureName, unit string, repetition int, value float64) {
	if g.values[name] == nil {
		g.units[name], g.values[name] = unit, map[int][]float64{}
	}
	g.values[name][repetition] = append(g.values[name][repetition], value)
}

// figures are all that was measured, step by step in the plan's order. What a
// repetition has several of, as boots of a role's guests, is their median, of
// times without service the longest, and of errors the sum.
func (f *facts) figures() ([]*figure, error) {
	g := &gathering{map[figureName]string{}, map[figureName]map[int][]float64{}}
	f.ofLoads(g)
	f.ofSamples(g)
	f.ofHost(g)
	if err := f.ofService(g); err != nil {
		return nil, err
	}
	var all []*figure
	for name, values := range g.values {
		one := &figure{name, g.units[name], map[int]float64{}}
		for repetition, v := range values {
			one.values[repetition] = reduce(name.kind, v)
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b *figure) int { return f.before(a.name, b.name) })
	return all, nil
}

func reduce(kind string, values []float64) float64 {
	switch kind {
	case "outage":
		return slices.Max(values)
	case "errors":
		sum := 0.0
		for _, v := range values {
			sum += v
		}
		return sum
	}
	return stats.Median(values)
}

// before sorts as figures are shown.
func (f *facts) before(a, b figureName) int {
	arm := func(name string) int {
		return slices.IndexFunc(f.run.Plan.Arms, func(one record.Arm) bool { return one.Name == name })
	}
	for _, by := range []int{
		f.place(a.step) - f.place(b.step), slices.Index(kinds, a.kind) - slices.Index(kinds, b.kind),
		byNumber(a.of, b.of), arm(a.arm) - arm(b.arm),
	} {
		if by != 0 {
			return by
		}
	}
	return 0
}

// ofLoads are throughput, what is carried, times and errors, of every load and of
// each of its operations.
func (f *facts) ofLoads(g *gathering) {
	roles := f.roles()
	for _, w := range f.flows {
		name := figureName{of: roles.of(w.load, w.op), op: w.op, step: w.step, arm: w.arm}
		kind := func(kind string) figureName { name.kind = kind; return name }
		for i, repetition := range w.turns {
			turn := record.Turn{Arm: w.arm, Repetition: repetition, Step: w.step}
			var sum tally
			for tile := range w.tiles {
				if s := f.streams[stream{turn, w.load, tile}]; s != nil && s.ops[w.op] != nil {
					sum.add(*s.ops[w.op])
				}
			}
			if g.add(kind("throughput"), "1/s", repetition, w.rates[i]); w.open && w.op == all {
				g.add(kind("served of offered"), unitPart, repetition, w.served[i])
			}
			g.add(kind("errors"), "count", repetition, sum.errors)
			if sum.bytes > 0 && sum.done > 0 {
				g.add(kind("bytes a second"), "bytes/s", repetition, w.rates[i]*sum.bytes/sum.done)
			}
			if times := f.times[timed{turn, w.load, w.op}]; times != nil {
				g.times(kind, "", repetition, times, sum.errors)
			}
		}
	}
}

// times are the mean of a distribution and those of its quantiles beyond which
// something was measured, and that do not lie among operations that failed.
func (g *gathering) times(kind func(string) figureName, prefix string, repetition int, times *hdrhistogram.Histogram, failed float64) {
	count := float64(times.TotalCount())
	if count == 0 {
		return
	}
	g.add(kind(prefix+"mean"), "s", repetition, times.Mean()*micro)
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", 50}, {"p95", 95}, {"p99", 99}, {"p99.9", 99.9}} {
		if took := quantile(times, failed, q.at); count*(1-q.at/100) >= 1 && !math.IsInf(took, 1) {
			g.add(kind(prefix+q.name), "s", repetition, took)
		}
	}
}

// ofService are times from when an operation did begin, of loads in which that is
// not when it was meant to.
func (f *facts) ofService(g *gathering) error {
	merged := map[timed]*hdrhistogram.Histogram{}
	for _, h := range f.run.Histograms {
		op := h.Labels["op"]
		if h.Window == record.WarmUp || h.Metric != record.MetricService || !counted(op) {
			continue
		}
		times, err := histogram.Decode(h.Values)
		if err != nil {
			return err
		}
		key := timed{h.Turn, h.Labels["load"], all}
		merged[key] = histogram.Merge(merged[key], times)
	}
	roles := f.roles()
	for key, times := range merged {
		name := figureName{of: roles.of(key.load, all), step: key.turn.Step, arm: key.turn.Arm}
		g.times(func(kind string) figureName { name.kind = kind; return name }, "service ", key.turn.Repetition, times, 0)
	}
	return nil
}

// ofSamples are those that are of guests and events, and not of operations.
func (f *facts) ofSamples(g *gathering) {
	roles := f.roles()
	for _, s := range f.run.Samples {
		if s.Metric != record.MetricBoot && s.Window == record.WarmUp && s.Metric != record.MetricDuration {
			continue
		}
		name := figureName{of: s.Labels["guest"], step: s.Step, arm: s.Arm}
		switch s.Metric {
		case record.MetricBoot:
			name.kind = "boot"
		case record.MetricDuration:
			name.kind, name.of = "time", s.Labels["event"]+" of "+name.of
		case record.MetricOutage:
			name.kind, name.of = "outage", roles.of(s.Labels["load"], all)
		case record.MetricDrift:
			name.kind = "drift"
		default:
			continue
		}
		g.add(name, s.Unit, s.Repetition, s.Value)
	}
}

// uses are what the host's counters say of a turn's measured time that another
// daemon may change.
var uses = []struct{ counter, of, unit string }{
	{"cpu_busy_cores", "the host's processors", "cores"},
	{"context_switches", "context switches", "1/s"},
	{"memory_anonymous_bytes", "anonymous memory", "bytes"},
}

// ofHost are means over the windows of a turn of what the host gave.
func (f *facts) ofHost(g *gathering) {
	type sum struct{ total, seconds float64 }
	sums := map[record.Turn]map[string]sum{}
	for _, t := range f.run.Telemetry {
		if t.Source != "host" || !f.measured(t) {
			continue
		}
		if sums[t.Turn] == nil {
			sums[t.Turn] = map[string]sum{}
		}
		for _, u := range uses {
			if value, ok := t.Values[u.counter]; ok {
				s := sums[t.Turn][u.counter]
				sums[t.Turn][u.counter] = sum{s.total + value, s.seconds + 1}
			}
		}
	}
	for turn, counters := range sums {
		for _, u := range uses {
			if s := counters[u.counter]; s.seconds > 0 {
				g.add(figureName{kind: "use", of: u.of, step: turn.Step, arm: turn.Arm}, u.unit, turn.Repetition, s.total/s.seconds)
			}
		}
	}
}

// rolesOf gives the roles that serve each load.
type rolesOf map[string]string

func (f *facts) roles() rolesOf {
	seen := map[string]map[string]bool{}
	for _, s := range f.run.Samples {
		if load := s.Labels["load"]; load != "" && s.Labels["guest"] != "" {
			if seen[load] == nil {
				seen[load] = map[string]bool{}
			}
			seen[load][s.Labels["guest"]] = true
		}
	}
	roles := rolesOf{}
	for load, guests := range seen {
		if names := slices.Sorted(maps.Keys(guests)); len(names) == 1 && names[0] != load {
			roles[load] = names[0]
		}
	}
	return roles
}

// of names a load with its role and an operation.
func (r rolesOf) of(load, op string) string {
	name := load
	if role := r[load]; role != "" {
		name += " (" + role + ")"
	}
	if op != all {
		name += " " + op
	}
	return name
}
