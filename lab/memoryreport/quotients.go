package memoryreport

import (
	"math"

	"github.com/lodge-kvm/lodge/lab/stats"
)

// carried is the load that a policy carries on a trace, as a share of the bound.
func (s *study) carried(trace, policy string) float64 {
	r := s.grids[key{trace, policy}]
	return r.Carried / r.Bound
}

// best finds the policy that carries most on a trace. Of equals it is the first.
func (s *study) best(trace string, policies []string) (policy string, carried float64) {
	for _, p := range policies {
		if c := s.carried(trace, p); policy == "" || c > carried {
			policy, carried = p, c
		}
	}
	return policy, carried
}

// quotient is what the subject carries divided by what others carry, over traces.
type quotient struct {
	mean        float64 // geometric
	least, most float64
	leastAt     string // trace
	left        int    // traces that are left out, because the other carries nothing there
}

// over divides the subject's carried load on each trace by that of the best of the others. All is NaN without a trace.
func (s *study) over(traces []string, others ...string) quotient {
	q := quotient{mean: math.NaN(), least: math.NaN(), most: math.NaN()}
	var all []float64
	for _, trace := range traces {
		_, theirs := s.best(trace, others)
		if theirs == 0 {
			q.left++
			continue
		}
		times := s.carried(trace, subject) / theirs
		if len(all) == 0 || times < q.least {
			q.least, q.leastAt = times, trace
		}
		if len(all) == 0 || times > q.most {
			q.most = times
		}
		all = append(all, times)
	}
	switch {
	case len(all) == 0:
	case q.least == 0:
		q.mean = 0
	default:
		q.mean = stats.GeometricMean(all)
	}
	return q
}

// spread is the mean, the least and the most of what a policy carries.
type spread struct{ mean, least, most float64 }

func (s *study) spread(policy string) spread {
	all := spread{least: math.Inf(1), most: math.Inf(-1)}
	for _, trace := range s.traces {
		c := s.carried(trace, policy)
		all.mean += c / float64(len(s.traces))
		all.least, all.most = min(all.least, c), max(all.most, c)
	}
	return all
}

// slow is the 99th percentile of slowdown up to that a load counts as carried.
const slow = 0.05

// outcome is what happened to a policy at the common load, over all traces.
type outcome struct {
	traces, slow          int // slow: with a 99th percentile above 5 %
	guestKills, hostKills float64
	floor                 float64
	p99, worst            float64 // the largest
	settle, reversals     float64 // the largest; NaN if no trace has steps or steady phases
}

func (s *study) outcome(policy string) outcome {
	o := outcome{settle: math.NaN(), reversals: math.NaN()}
	for _, trace := range s.traces {
		r := s.common[key{trace, policy}]
		if r == nil {
			continue
		}
		o.traces++
		if r.P99[0] > slow {
			o.slow++
		}
		o.guestKills += r.GuestKills[0]
		o.hostKills += r.HostKills[0]
		o.floor += r.Floor[0]
		o.p99, o.worst = max(o.p99, r.P99[0]), max(o.worst, r.Worst[0])
		o.settle, o.reversals = larger(o.settle, r.Settle), larger(o.reversals, r.Reversals)
	}
	return o
}

// larger is the larger of a number, which may be NaN, and a list's first, which may not be there.
func larger(than float64, list []float64) float64 {
	if len(list) == 0 || list[0] <= than {
		return than
	}
	return list[0]
}

// share is the common load as a share of what the oracle carries; NaN without a run at such a load.
func (s *study) share() float64 {
	for _, trace := range s.traces {
		if r := s.common[key{trace, oracle}]; r != nil {
			return r.Factors[0] / s.grids[key{trace, oracle}].Carried
		}
	}
	return math.NaN()
}

// atCarried gives the place of the carried load in the lists of an evaluation; -1 if nothing is carried.
func (r *row) atCarried() int {
	for i, factor := range r.Factors {
		if factor == r.Carried {
			return i
		}
	}
	return -1
}
