package stormreport

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/lodge-kvm/lodge/lab/stats"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// stirs are the calls of others that are made both while nothing is stopped and
// while callers hang.
func (f *facts) stirs(target string) (metrics []storm.Metric, guests, disks int) {
	for _, r := range f.runs {
		for _, c := range r.Calls {
			if c.Scenario == storm.Wedge && c.Case == storm.Idle && (target == "" || c.Target == target) {
				guests, disks = max(guests, c.Guests), max(disks, c.Disks)
				if !slices.Contains(metrics, c.Metric) {
					metrics = append(metrics, c.Metric)
				}
			}
		}
	}
	slices.Sort(metrics)
	return metrics, guests, disks
}

// stir is how one kind of call fares while callers hang, beside the same when
// nothing is stopped.
type stir struct {
	metric       storm.Metric
	idle, wedged stats.Ratio // p99 in seconds
	ratio        stats.Ratio
	longest      float64 // s, while callers hang
	repeats      int
	blocked      float64 // s, if it had not ended
	failed       int
}

func (f *facts) stir(target string, m storm.Metric, guests, disks int) stir {
	idle := place{storm.Wedge, guests, disks, storm.Idle, m}
	wedged := place{storm.Wedge, guests, disks, storm.Wedged, m}
	q := question{target: target, place: wedged}
	if known, ok := f.stirred[q]; ok {
		return known
	}
	before, during := f.calls(target, idle, 0.99), f.calls(target, wedged, 0.99)
	x, y := pairs(during, before)
	s := stir{metric: m, idle: level(before), wedged: level(during), ratio: stats.PairedRatio(x, y), repeats: len(x), blocked: f.blocked(target, wedged)}
	s.failed, _ = f.failed(target, wedged)
	s.longest = math.NaN()
	if h := f.histogram(target, wedged); h != nil {
		s.longest = float64(h.Max()) / 1e6
	}
	f.stirred[q] = s
	return s
}

// disturbed is how many times as long as when nothing is stopped a call may take
// while callers hang.
const disturbed = 2

// stands holds one kind of call against that.
func (s stir) stands() (o outcome) {
	switch {
	case s.blocked > 0:
		o.Standing, o.Why = unmet, "it had not ended when the lab's patience did"
	case s.failed > 0:
		o.Standing, o.Why = unmet, fmt.Sprintf("%s of %s failed", plural(s.failed, "call", "calls"), s.metric)
	default:
		o.Ratio = within(s.ratio, times)
		if o.hold(s.ratio, disturbed, s.repeats); o.Standing == unmeasured {
			o.Why = fmt.Sprintf("no %s ended while callers hung", s.metric)
		}
	}
	return o
}

// worse orders kinds of calls by how they stand, blocked before failed, and then
// by how they fare.
func worse(a, b stir) int {
	gravity := func(s stir) int {
		return slices.Index([]standing{met, unclear, unmeasured, unmet}, s.stands().Standing)
	}
	return cmp.Or(cmp.Compare(gravity(a), gravity(b)), cmp.Compare(a.blocked, b.blocked),
		cmp.Compare(a.failed, b.failed), cmp.Compare(a.ratio.Value, b.ratio.Value))
}

// worst is the kind of call that fares worst; kinds is how many there are.
func (f *facts) worst(target string) (worst stir, blocked, kinds int) {
	metrics, guests, disks := f.stirs(target)
	var all []stir
	for _, m := range metrics {
		s := f.stir(target, m, guests, disks)
		if s.blocked > 0 {
			blocked++
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return worst, 0, 0
	}
	return slices.MaxFunc(all, worse), blocked, len(all)
}

func (f *facts) calmest(p promise) outcome {
	show := func(target string) cell {
		worst, blocked, kinds := f.worst(target)
		switch {
		case kinds == 0:
			return cell{}
		case blocked > 0:
			return cell{fmt.Sprintf("%d of %s blocked after %s", blocked, plural(kinds, "kind", "kinds"), waited(worst.blocked)), true}
		}
		return cell{Text: fmt.Sprintf("%s: %s", worst.metric, duration(worst.wedged.Value))}
	}
	o := outcome{Standing: unmeasured, Why: f.whyNot(storm.Wedge)}
	if worst, _, kinds := f.worst(f.subject.Name); kinds > 0 {
		o = worst.stands()
	}
	o.What, o.Said, o.Subject = p.what, p.said(), show(f.subject.Name)
	for _, t := range f.others {
		o.Others = append(o.Others, show(t.Name))
	}
	o.fill(f)
	return o
}
