package pages

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// all stands for all operations of a load together.
const all = ""

// counted tells whether an operation is work of its own, and not made of others.
func counted(op string) bool {
	return op != workload.OpCycle && op != workload.OpUndone && op != workload.OpSetup
}

// stream is one load of one tile in one turn.
type stream struct {
	turn       record.Turn
	load, tile string
}

// tally is what one operation came to.
type tally struct {
	done, errors, bytes float64
}

func (t *tally) add(more tally) {
	t.done, t.errors, t.bytes = t.done+more.done, t.errors+more.errors, t.bytes+more.bytes
}

// timed is whose latencies are merged: those of all tiles, because one for each
// of very many tiles would not fit into memory.
type timed struct {
	turn     record.Turn
	load, op string
}

// sums are those of one stream.
type sums struct {
	seconds map[int]float64            // measured, of each window that it has
	told    map[int]bool               // those of which the record tells it, and it is not worked out
	ops     map[string]*tally          // of all windows together
	outage  float64                    // s
	done    map[int]map[string]float64 // for lengths: done by window and operation

	open              bool    // what it was offered is known
	offered, answered float64 // in all windows
}

// length is the time that was measured, s. A window without anything counts with its
// whole length, because the load was meant to run.
func (s *sums) length(plan record.Plan) float64 {
	length, atOnce := 0.0, false
	for _, seconds := range s.seconds {
		length += seconds
		atOnce = atOnce || seconds > 1.5*plan.Measure // a load that told all at its end
	}
	if !atOnce {
		length += float64(plan.Windows-len(s.seconds)) * plan.Measure
	}
	return length
}

// rate is done by the time that was measured.
func (s *sums) rate(op string, plan record.Plan) float64 {
	length := s.length(plan)
	if s.ops[op] == nil || length <= 0 {
		return 0
	}
	return s.ops[op].done / length
}

// add counts for the operation, and for all together.
func (s *sums) add(op string, more tally) {
	for _, name := range []string{op, all} {
		if name == all && !counted(op) {
			continue
		}
		if s.ops[name] == nil {
			s.ops[name] = &tally{}
		}
		s.ops[name].add(more)
		if op == all {
			return
		}
	}
}

// gather sums a record up by streams. The warm-up never counts.
func (f *facts) gather() error {
	for _, s := range f.run.Samples {
		switch {
		case s.Labels["load"] == "":
		case s.Window != record.WarmUp:
			f.count(s)
		case s.Metric == record.MetricErrors && counted(s.Labels["op"]):
			f.failedBefore += s.Value
		}
	}
	for _, s := range f.run.Samples {
		if s.Window == record.WarmUp || s.Metric != record.MetricRate || !(s.Value > 0) {
			continue
		}
		if sums := f.stream(s); !sums.told[s.Window] {
			sums.seconds[s.Window] = max(sums.seconds[s.Window], sums.done[s.Window][s.Labels["op"]]/s.Value)
		}
	}
	for _, s := range f.streams {
		for number := range s.done {
			if s.seconds[number] == 0 {
				s.seconds[number] = f.run.Plan.Measure // nothing was done, and its length is not told
			}
		}
	}
	f.sort()
	f.unoffered = f.withoutOffers()
	for _, h := range f.run.Histograms {
		if h.Metric == record.MetricService && f.run.Older() {
			f.unoffered[h.Labels["load"]] = true // only open loads have a time of service
		}
		if h.Window == record.WarmUp || h.Metric != record.MetricLatency {
			continue
		}
		times, err := histogram.Decode(h.Values)
		if err != nil {
			return err
		}
		op, load := h.Labels["op"], h.Labels["load"]
		if op != all {
			f.merge(timed{h.Turn, load, op}, times)
		}
		if counted(op) {
			f.merge(timed{h.Turn, load, all}, times)
		}
	}
	return nil
}

// withoutOffers are the open loads of which the record does not hold what was offered: an
// agent of an older image did not tell it.
func (f *facts) withoutOffers() map[string]bool {
	lacks := map[string]bool{}
	for _, l := range f.run.Plan.Loads {
		lacks[l.Name] = l.Open
	}
	for s, sums := range f.streams {
		if sums.open {
			delete(lacks, s.load)
		}
	}
	return lacks
}

// sort puts streams where they are looked for.
func (f *facts) sort() {
	for s, sums := range f.streams {
		f.steps[s.turn.Step] = append(f.steps[s.turn.Step], s)
		if f.ops[s.load] == nil {
			f.ops[s.load] = map[string]bool{}
		}
		for op := range sums.ops {
			if op != all {
				f.ops[s.load][op] = true
			}
		}
	}
}

func (f *facts) merge(of timed, times *hdrhistogram.Histogram) {
	f.times[of] = histogram.Merge(f.times[of], times)
}

// stream gives the sums that a sample belongs to, and makes them.
func (f *facts) stream(s record.Sample) *sums {
	key := stream{s.Turn, s.Labels["load"], s.Labels["tile"]}
	if f.streams[key] == nil {
		f.streams[key] = &sums{seconds: map[int]float64{}, told: map[int]bool{}, ops: map[string]*tally{}, done: map[int]map[string]float64{}}
	}
	return f.streams[key]
}

// count adds one sample to the stream that it is of.
func (f *facts) count(s record.Sample) {
	op := s.Labels["op"]
	switch s.Metric {
	case record.MetricDone:
		sums := f.stream(s)
		if sums.done[s.Window] == nil {
			sums.done[s.Window] = map[string]float64{}
		}
		sums.done[s.Window][op] += s.Value
		sums.add(op, tally{done: s.Value})
	case record.MetricErrors:
		f.stream(s).add(op, tally{errors: s.Value})
	case "bytes":
		f.stream(s).add(op, tally{bytes: s.Value})
	case record.MetricOutage:
		sums := f.stream(s)
		sums.outage = max(sums.outage, s.Value)
	case record.MetricLength:
		sums := f.stream(s)
		sums.seconds[s.Window], sums.told[s.Window] = s.Value, true
	case record.MetricOffered:
		sums := f.stream(s)
		sums.open, sums.offered = true, sums.offered+s.Value
	case record.MetricAnswered:
		f.stream(s).answered += s.Value
	}
}

// flow is one operation of a load in one arm's one step.
type flow struct {
	step, arm, load, op string
	turns               []int                // the repetitions that have it
	rates               []float64            // of each of those, all tiles together
	rate                stats.Ratio          // their median, with its interval
	tiles               map[string][]float64 // rates by tile, of the same repetitions
	sum                 tally
	times               *hdrhistogram.Histogram // of all repetitions, µs; nil without
	slow                []float64               // the 99th percentile of each repetition, s; none without times, infinite where it failed
	outage              float64                 // the longest, s
	open                bool                    // what was offered is known
	offers              map[string][]float64    // offered in a second by tile, of the same repetitions
	parts               map[string][]float64    // served of that, as a part
	served              []float64               // the same of all tiles together
}

// flow sums one up; nil where there is none.
func (f *facts) flow(step, arm, load, op string) *flow {
	found := &flow{step: step, arm: arm, load: load, op: op, tiles: map[string][]float64{}, offers: map[string][]float64{}, parts: map[string][]float64{}}
	names := f.tiles(step, arm, load)
	for repetition := 1; repetition <= f.run.Plan.Repetitions; repetition++ {
		turn := record.Turn{Arm: arm, Repetition: repetition, Step: step}
		rate, here := 0.0, false
		rates, offers, parts := map[string]float64{}, map[string]float64{}, map[string]float64{}
		var offered, answered, errors float64
		for _, tile := range names {
			s := f.streams[stream{turn, load, tile}]
			if s == nil {
				continue // a tile that was not there did nothing
			}
			here = true
			rates[tile] = s.rate(op, f.run.Plan)
			rate += rates[tile]
			found.outage = max(found.outage, s.outage)
			if t := s.ops[op]; t != nil {
				found.sum.add(*t)
				errors += t.errors
			}
			if s.open {
				found.open = true
				offered, answered = offered+s.offered, answered+s.answered
				offers[tile], parts[tile] = s.offered/s.length(f.run.Plan), part(s.answered, s.offered)
			}
		}
		if !here {
			continue
		}
		found.turns, found.rates = append(found.turns, repetition), append(found.rates, rate)
		for _, tile := range names {
			found.tiles[tile] = append(found.tiles[tile], rates[tile])
			found.offers[tile] = append(found.offers[tile], offers[tile])
			found.parts[tile] = append(found.parts[tile], parts[tile])
		}
		found.served = append(found.served, part(answered, offered))
		if times := f.times[timed{turn, load, op}]; times != nil && times.TotalCount() > 0 {
			found.slow = append(found.slow, quantile(times, errors, 99))
			found.times = histogram.Merge(found.times, times)
		}
	}
	if len(found.rates) == 0 {
		return nil
	}
	found.rate = median(found.rates)
	return found
}

// part is one number by another, and none of nothing.
func part(of, all float64) float64 {
	if all <= 0 {
		return 0
	}
	return of / all
}

// quantile is in s. Operations that failed are longer than all that were done: where it
// lies among them it is infinite.
func quantile(times *hdrhistogram.Histogram, failed, at float64) float64 {
	took, done := histogram.Quantile(times, int64(failed), at)
	if !done {
		return math.Inf(1)
	}
	return took.Seconds()
}

// tiles lists those of which a load was measured in a step, in whatever arm of guests.
// An arm outside of guests may have others: those that it has.
func (f *facts) tiles(step, arm, load string) []string {
	outside := map[string]bool{}
	for _, a := range f.run.Plan.Outside() {
		outside[a.Name] = true
	}
	seen := map[string]bool{}
	for _, s := range f.steps[step] {
		if s.load == load && (s.turn.Arm == arm || !outside[arm] && !outside[s.turn.Arm]) {
			seen[s.tile] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), byNumber)
}

// byNumber sorts 2 before 10.
func byNumber(a, b string) int {
	x, errX := strconv.Atoi(a)
	y, errY := strconv.Atoi(b)
	if errX == nil && errY == nil && x != y {
		return x - y
	}
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

// names lists the loads of a step, and the operations of each; all alone where
// there is but one.
func (f *facts) names(step string) map[string][]string {
	seen := map[string]map[string]bool{}
	for _, s := range f.steps[step] {
		if seen[s.load] == nil {
			seen[s.load] = map[string]bool{}
		}
		for op := range f.streams[s].ops {
			if op != all {
				seen[s.load][op] = true
			}
		}
	}
	names := map[string][]string{}
	for load, ops := range seen {
		names[load] = []string{all}
		if len(ops) > 1 {
			names[load] = append(names[load], slices.Sorted(maps.Keys(ops))...)
		}
	}
	return names
}
