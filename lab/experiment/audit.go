package experiment

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// drifts is how far a guest's clock may go wrong before its times are no times.
const drifts = 0.002

// audit holds what the loads say against what the servers' own books say, and the
// guests' clocks against the host's.
func (t *turn) audit(ctx context.Context, streams []*stream) {
	for _, s := range streams {
		for _, errand := range s.load.Check {
			total, err := t.errand(ctx, s, errand)
			if err != nil {
				t.trouble("check", s.name(), err)
				continue
			}
			t.books(s, total)
		}
	}
	for _, g := range t.standing() {
		err := g.Serving(ctx)
		if err != nil {
			t.trouble("service", g.spec.Name, err)
		}
		if fault.Is(err, fault.Unresponsive) {
			continue
		}
		t.logs(ctx, g, streams)
		t.drift(ctx, g)
	}
}

// books compares operation by operation with what an errand found.
func (t *turn) books(s *stream, found workload.Total) {
	for op, there := range found.Ops {
		if there.Errors > 0 {
			t.note(record.Event{Kind: record.Bad, What: "books", Guest: s.to.spec.Name, Text: fmt.Sprintf("%s: %s", s.name(), there.Example), Values: map[string]float64{"rows": float64(there.Errors)}})
		}
		if here, ok := s.tally.all.Ops[op]; ok {
			t.agree(s.to, s.load.Name, op, here.Done, here.Errors, there.Done)
		}
	}
}

// logs compares a server's own counter with all that was sent to it.
func (t *turn) logs(ctx context.Context, g *standing, streams []*stream) {
	sent := map[string]*workload.Count{}
	names := map[string]string{}
	for _, s := range streams {
		if s.to != g || s.load.Counted == "" {
			continue
		}
		if sent[s.load.Counted] == nil {
			sent[s.load.Counted] = &workload.Count{}
		}
		for op, count := range s.tally.all.Ops {
			// A whole visit is made of requests that are counted by themselves, and
			// what was undone is begun anew.
			if op != workload.OpCycle && op != workload.OpUndone {
				sent[s.load.Counted].Done += count.Done
				sent[s.load.Counted].Errors += count.Errors
			}
		}
		names[s.load.Counted] = s.load.Name
	}
	if len(sent) == 0 || g.counts == nil {
		return
	}
	counts, err := g.Counted(ctx)
	if err != nil {
		t.trouble("count", g.spec.Name, err)
		return
	}
	for counter, count := range sent {
		t.agree(g, names[counter], counter, count.Done, count.Errors, counts[counter]-g.counts[counter])
	}
}

// agree keeps both sides. Of what failed the server may have done some, and
// nothing else may differ.
func (t *turn) agree(g *standing, load, op string, done, failed, served int64) {
	where := labels(g.spec, record.Labels{"load": load, "op": op})
	t.sample(record.Sample{Window: 1, Metric: record.MetricSent, Value: float64(done), Unit: "count", Labels: where})
	t.sample(record.Sample{Window: 1, Metric: record.MetricServed, Value: float64(served), Unit: "count", Labels: where})
	if served < done || served > done+failed {
		t.note(record.Event{
			Kind: record.Bad, What: "books", Guest: g.spec.Name,
			Text: fmt.Sprintf("%s %s: the load counts %d done and %d failed, the server %d", load, op, done, failed, served),
		})
	}
}

// drift says how far a guest's second is none.
func (t *turn) drift(ctx context.Context, g *standing) {
	now, err := g.Clock(ctx)
	if err != nil {
		t.trouble("clock", g.spec.Name, err)
		return
	}
	here := now.At.Sub(g.clock.At)
	if g.clock.At.IsZero() || here <= 0 {
		return
	}
	part := ((now.Up-g.clock.Up).Seconds()+t.stood(g))/here.Seconds() - 1
	t.sample(record.Sample{Window: 1, Metric: record.MetricDrift, Value: part, Unit: "part", Labels: labels(g.spec, nil)})
	// Two looks over a loaded line are each wrong by some milliseconds.
	if slack := 0.05 / here.Seconds(); math.Abs(part) > drifts+slack {
		t.note(record.Event{Kind: record.Bad, What: "clock", Guest: g.spec.Name, Text: fmt.Sprintf("its clock went %+.2f %% wrong: times measured in it are none", part*100)})
	}
}

// stood is for how long a guest stood still as it was moved, by the daemon's account:
// its clock did so, too.
func (t *turn) stood(g *standing) (seconds float64) {
	for _, c := range t.done {
		if c.guest == g {
			seconds += c.figures[figureDowntime]
		}
	}
	return seconds
}

// bounds says which of the scenario's bounds the windows break.
func (t *turn) bounds(streams []*stream) {
	for _, b := range t.w.Header.Plan.Bounds {
		for _, s := range streams {
			if !b.Concerns(s.load.Name) {
				continue
			}
			for number := 1; number <= t.Plan.Windows; number++ {
				value, ok := s.measured(b.Metric, number)
				if ok && !b.Keeps(value) {
					t.note(record.Event{
						Kind: record.Bad, What: record.WhatBound, Window: number, Guest: s.to.spec.Name,
						Text:   fmt.Sprintf("%s: %s is %.4g %s", s.name(), b.Metric, value, b.Unit),
						Labels: record.Labels{"load": s.load.Name, "tile": fmt.Sprint(s.tile), "metric": b.Metric},
						Values: map[string]float64{record.ValueBound: value},
					})
				}
			}
		}
	}
}

// measured gives a metric of all operations of a window. A percentile that lies among
// the operations that failed is longer than can be told.
func (s *stream) measured(metric string, number int) (float64, bool) {
	all := s.tally.windows[number].All()
	if metric == record.MetricErrors {
		return float64(all.Errors), true
	}
	if metric == record.MetricDone {
		return float64(all.Done), true
	}
	names := []string{"latency.mean", "latency.p50", "latency.p95", "latency.p99", "latency.p999"}
	i := slices.Index(names, metric)
	if i < 0 {
		return 0, false
	}
	if all.Latency == nil || all.Latency.TotalCount() == 0 {
		return tellable, i > 0 && all.Errors > 0
	}
	if i == 0 {
		return all.Latency.Mean() / 1e6, true
	}
	quantile, done := histogram.Quantile(all.Latency, all.Errors, []float64{0, 50, 95, 99, 99.9}[i])
	if !done {
		return tellable, true
	}
	return quantile.Seconds(), true
}
