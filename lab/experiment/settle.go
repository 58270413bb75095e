package experiment

import (
	"maps"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// settle writes down what came of a load, window by window.
func (t *turn) settle(s *stream) {
	where := labels(s.to.spec, record.Labels{"load": s.load.Name})
	for number := range s.tally.windows {
		total := s.tally.windows[number]
		for _, op := range slices.Sorted(maps.Keys(total.Ops)) {
			t.window(s, number, with(where, "op", op), total.Ops[op])
		}
	}
	t.arrivals(s, where)
	t.line(s, where)
	t.sample(record.Sample{Window: 1, Metric: record.MetricOutage, Value: s.tally.gap.Seconds(), Unit: "s", Labels: where})
}

// arrivals writes how long each window was, and of an open load what was offered in it
// and what became of that.
func (t *turn) arrivals(s *stream, where record.Labels) {
	for number, length := range s.tally.lengths {
		add := func(metric string, value float64, unit string) {
			t.sample(record.Sample{Window: number, Metric: metric, Value: value, Unit: unit, Labels: where})
		}
		if length > 0 {
			add(record.MetricLength, length.Seconds(), "s")
		}
		if s.tally.all.Open() {
			window := s.tally.windows[number]
			add(record.MetricOffered, float64(window.Offered), "count")
			add(record.MetricAnswered, float64(window.Served), "count")
		}
	}
}

// line writes the time line. A second in which nothing ended is a zero, and no gap.
func (t *turn) line(s *stream, where record.Labels) {
	ops := slices.DeleteFunc(slices.Sorted(maps.Keys(s.tally.all.Ops)), func(op string) bool { return op == workload.OpSetup })
	for i, one := range s.tally.seconds {
		if one.length <= 0 {
			continue
		}
		if i > 0 && i == len(s.tally.seconds)-1 && 4*one.length < s.tally.seconds[i-1].length {
			break // what ends in the moment in which a load does is no rate
		}
		// What was told late, as one, is told as evenly as it can be.
		parts := max(1, int(min(one.length, t.length()).Seconds()+0.5))
		for part := range parts {
			at := one.at.Add(one.length / time.Duration(parts) * time.Duration(part))
			for _, op := range ops {
				t.sample(record.Sample{Time: at, Window: one.window, Metric: record.MetricSecond, Value: float64(one.ops[op]) / one.length.Seconds(), Unit: "1/s", Labels: with(where, "op", op)})
			}
		}
	}
}

func with(l record.Labels, name, value string) record.Labels {
	all := maps.Clone(l)
	all[name] = value
	return all
}

// window writes one operation of one window. Errors stand beside what was done
// and never in it.
func (t *turn) window(s *stream, number int, where record.Labels, c workload.Count) {
	add := func(metric string, value float64, unit string) {
		t.sample(record.Sample{Window: number, Metric: metric, Value: value, Unit: unit, Labels: where})
	}
	add(record.MetricDone, float64(c.Done), "count")
	add(record.MetricErrors, float64(c.Errors), "count")
	if length := s.tally.lengths[number].Seconds(); length > 0 {
		add(record.MetricRate, float64(c.Done)/length, "1/s")
	}
	if c.Bytes > 0 {
		add("bytes", float64(c.Bytes), "bytes")
	}
	if c.Errors > 0 {
		when := ""
		if number == record.WarmUp {
			when = ", outside of the measured windows"
		}
		t.note(record.Event{Kind: record.Failed, What: "load", Window: number, Guest: s.to.spec.Name, Text: s.name() + when + ": " + c.Example, Values: map[string]float64{"errors": float64(c.Errors)}})
	}
	t.times(number, record.MetricLatency, where, c.Latency)
	t.times(number, record.MetricService, where, c.Service)
}

// times writes a distribution, and of it what tables want.
func (t *turn) times(number int, metric string, where record.Labels, h *hdrhistogram.Histogram) {
	if h == nil || h.TotalCount() == 0 {
		return
	}
	const micro = 1e-6
	add := func(what string, value float64) {
		t.sample(record.Sample{Window: number, Metric: metric + "." + what, Value: value * micro, Unit: "s", Labels: where})
	}
	add("mean", h.Mean())
	for name, q := range map[string]float64{"p50": 50, "p95": 95, "p99": 99, "p999": 99.9} {
		add(name, float64(h.ValueAtQuantile(q)))
	}
	line := record.Histogram{Turn: t.at, Window: number, Metric: metric, Unit: "µs", Labels: where}
	line.Time = time.Now()
	t.keep(line.Pack(h))
	t.keep(t.w.Histogram(line))
}
