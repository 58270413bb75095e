package stormreport

import (
	"cmp"
	"math"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/stats"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// facts are runs of one host with the same targets, as one.
type facts struct {
	runs    []*storm.Run
	subject storm.Target
	others  []storm.Target       // daemons beside the subject
	asked   map[question][]value // what calls has answered: histograms are slow to make and to read
	stirred map[question]stir    // and stir
}

// place is where values lie that may be compared: all of a cell but the target
// and the repetition.
type place struct {
	scenario storm.Scenario
	guests   int
	disks    int
	kind     storm.Case
	metric   storm.Metric
}

// question is one that calls is asked.
type question struct {
	target   string
	place    place
	quantile float64
}

// value is one of a repetition.
type value struct {
	run, repeat int
	value       float64
}

func gather(runs []*storm.Run) (*facts, error) {
	f := &facts{runs: runs, asked: map[question][]value{}, stirred: map[question]stir{}}
	for _, r := range runs {
		mine, first := r.Host, runs[0].Host
		mine.Load, first.Load = 0, 0
		if mine != first {
			return nil, fault.New(fault.Invalid, fault.Host, "these storms were measured on different hosts, and only those of one host may stand beside each other: show them one by one")
		}
		if r.Clients != runs[0].Clients {
			return nil, fault.New(fault.Invalid, fault.Call, "one of these storms was made by %d clients and another by %d, and their times are not alike: show them one by one", runs[0].Clients, r.Clients)
		}
		for _, t := range r.Targets {
			switch {
			case t.Kind != storm.Daemon || f.daemon(t.Name):
			case f.subject.Name == "":
				f.subject = t
			default:
				f.others = append(f.others, t)
			}
		}
	}
	if f.subject.Name == "" {
		return nil, fault.New(fault.Invalid, fault.Host, "this storm has no daemon that could be reported on")
	}
	return f, nil
}

func (f *facts) daemon(name string) bool {
	return slices.ContainsFunc(f.daemons(), func(t storm.Target) bool { return t.Name == name })
}

// daemons are the subject and the others.
func (f *facts) daemons() []storm.Target {
	if f.subject.Name == "" {
		return nil
	}
	return append([]storm.Target{f.subject}, f.others...)
}

// direct is the bare command line that a daemon is compared with: the one with
// its own arguments, or else whichever there is.
func (f *facts) direct(daemon string) string {
	name := ""
	for _, r := range f.runs {
		for _, t := range r.Targets {
			if t.Kind == storm.Direct && (name == "" || t.Of == daemon) {
				name = t.Name
			}
		}
	}
	return name
}

func at(c storm.Cell, m storm.Metric) place {
	return place{c.Scenario, c.Guests, c.Disks, c.Case, m}
}

// samples are the values of a target at a place, by run and repetition.
func (f *facts) samples(target string, p place) []value {
	var all []value
	for i, r := range f.runs {
		for _, s := range r.Samples {
			if s.Target == target && at(s.Cell, s.Metric) == p {
				all = append(all, value{i, s.Repeat, s.Value})
			}
		}
	}
	return all
}

// calls gives, for each repetition, a quantile of the times of single calls in
// seconds. Calls that were cut are among them with the time they took at least.
func (f *facts) calls(target string, p place, quantile float64) []value {
	q := question{target, p, quantile}
	if known, ok := f.asked[q]; ok {
		return known
	}
	type repetition struct{ run, repeat int }
	byRepeat := map[repetition]*hdrhistogram.Histogram{}
	f.eachCalls(target, p, func(run int, c *storm.Calls, h *hdrhistogram.Histogram) {
		k := repetition{run, c.Repeat}
		if byRepeat[k] == nil {
			byRepeat[k] = histogram.New()
		}
		byRepeat[k].Merge(h)
	})
	var all []value
	for k, h := range byRepeat {
		all = append(all, value{k.run, k.repeat, seconds(h, quantile)})
	}
	slices.SortFunc(all, func(a, b value) int { return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(a.repeat, b.repeat)) })
	f.asked[q] = all
	return all
}

// histogram is of all repetitions' calls, in µs; nil if there are none.
func (f *facts) histogram(target string, p place) *hdrhistogram.Histogram {
	var all *hdrhistogram.Histogram
	f.eachCalls(target, p, func(_ int, _ *storm.Calls, h *hdrhistogram.Histogram) {
		if all == nil {
			all = histogram.New()
		}
		all.Merge(h)
	})
	return all
}

// eachCalls visits what callers waited for: calls that were done, that were
// rightly refused, and that were cut.
func (f *facts) eachCalls(target string, p place, visit func(run int, c *storm.Calls, h *hdrhistogram.Histogram)) {
	for i, r := range f.runs {
		for j := range r.Calls {
			c := &r.Calls[j]
			if c.Target != target || at(c.Cell, c.Metric) != p || c.Outcome == storm.Refused || c.Outcome == storm.TimedOut {
				continue
			}
			if h, err := c.Times(); err == nil && h.TotalCount() > 0 {
				visit(i, c, h)
			}
		}
	}
}

// seconds is a quantile of a histogram of µs: the least value that this part of
// the calls did not exceed. The histogram itself rounds to the nearest call, which
// for the p99 of 60 leaves out the longest.
func seconds(h *hdrhistogram.Histogram, quantile float64) float64 {
	n := float64(h.TotalCount())
	rank := max(1, math.Ceil(quantile*n-1e-9))
	return float64(h.ValueAtQuantile(100*rank/n)) / 1e6
}

// blocked is the longest wait after which something at a place had not ended; 0
// if all ended.
func (f *facts) blocked(target string, p place) float64 {
	longest := 0.0
	for _, r := range f.runs {
		for _, b := range r.Blocked {
			if b.Target == target && at(b.Cell, b.Metric) == p {
				longest = max(longest, b.After)
			}
		}
		for _, c := range r.Calls {
			if c.Target == target && at(c.Cell, c.Metric) == p && c.Outcome == storm.Cut && len(c.Took) > 0 {
				longest = max(longest, float64(slices.Max(c.Took))/1e6)
			}
		}
	}
	return longest
}

// sizes are the numbers of guests at which a target has samples at places like
// this one, rising.
func (f *facts) sizes(target string, like place) []int {
	var all []int
	for _, r := range f.runs {
		for _, s := range r.Samples {
			like.guests = s.Guests
			if s.Target == target && at(s.Cell, s.Metric) == like {
				all = append(all, s.Guests)
			}
		}
		for _, c := range r.Calls {
			like.guests = c.Guests
			if c.Target == target && at(c.Cell, c.Metric) == like {
				all = append(all, c.Guests)
			}
		}
		for _, b := range r.Blocked {
			like.guests = b.Guests
			if b.Target == target && at(b.Cell, b.Metric) == like {
				all = append(all, b.Guests)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// nearest is the measured size that is nearest to the wanted one, in proportion;
// 0 if there is none.
func nearest(sizes []int, wanted int) int {
	best := 0
	for _, n := range sizes {
		if n > 0 && (best == 0 || apart(n, wanted) < apart(best, wanted)) {
			best = n
		}
	}
	return best
}

func apart(n, wanted int) float64 { return math.Abs(math.Log(float64(n) / float64(wanted))) }

// pairs are the values that two have of the same repetitions.
func pairs(a, b []value) (x, y []float64) {
	for _, v := range a {
		for _, w := range b {
			if v.run == w.run && v.repeat == w.repeat {
				x, y = append(x, v.value), append(y, w.value)
				break
			}
		}
	}
	return x, y
}

// inPairs is how many repetitions a test in pairs wants: of fewer, swapping can
// never be rare enough to stand a correction for the lines of a table.
const inPairs = 12

// compare weighs values repetition by repetition; of few repetitions the test
// deals them out as two lists instead.
func compare(a, b []value) stats.Comparison {
	x, y := pairs(a, b)
	if len(x) < inPairs {
		c := stats.Compare(x, y)
		c.Ratio = stats.PairedRatio(x, y)
		return c
	}
	return stats.ComparePairs(x, y)
}

// leastChance is the smallest p that so many repetitions can give.
func leastChance(repeats int) float64 {
	low, high := make([]float64, repeats), make([]float64, repeats)
	for i := range high {
		high[i] = 1
	}
	if repeats < inPairs {
		return stats.Unpaired(low, high)
	}
	return stats.Paired(low, high)
}

func plain(all []value) []float64 {
	values := make([]float64, len(all))
	for i, v := range all {
		values[i] = v.value
	}
	return values
}

// middle is the median of repetitions.
func middle(all []value) float64 { return stats.Median(plain(all)) }

// level is the median of repetitions with its interval.
func level(all []value) stats.Ratio { return stats.MedianRatio(plain(all), []float64{1}) }
