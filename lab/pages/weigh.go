package pages

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/lodge-kvm/lodge/lab/stats"
)

// pair is one metric on two sides, each value of a repetition.
type pair struct {
	what, unit string
	a, b       []float64
	step, row  string       // where it stands in tables
	family     string       // those of one are read together
	main       bool         // it is shown where no more can be said than what was measured
	beside     bool         // each a[i] was measured beside its b[i]
	again      *stats.Ratio // of b measured a second time, by the first: A/A
	unsound    string       // why its values are not to be believed; empty if they may be
	picked     int          // out of so many pairs, for being the farthest apart; 0: it was not picked
	counted    string       // what its values are each of: "" is a repetition
	places     []int        // in how many places they were measured beside each other, and how many there: in their order; nil: in one
}

// weighed is what came of a pair.
type weighed struct {
	pair
	stats.Comparison         // with p after Holm's correction
	why              string  // there is no verdict; empty if there is one
	noise            float64 // part by which a side differs from itself
	finding          stats.Finding
	together         int // how many were read together
}

// weigh compares every pair. Those of a family are read together: p is Holm's.
// Where a side has too few values, or one that is zero, there is no verdict; nor
// below the noise.
func weigh(pairs []pair) []weighed {
	all := make([]weighed, len(pairs))
	families := map[string][]int{}
	for i, p := range pairs {
		all[i] = weighed{pair: p, noise: math.NaN()}
		if all[i].why = p.unable(); all[i].why != "" {
			all[i].Ratio = p.ratio()
			continue
		}
		all[i].Comparison, all[i].noise = p.compare(), p.noise()
		families[p.family] = append(families[p.family], i)
	}
	for _, members := range families {
		var p []float64
		for _, i := range members {
			p = append(p, min(1, all[i].P*float64(max(1, all[i].picked))))
		}
		for rank, corrected := range stats.Holm(p) {
			w := &all[members[rank]]
			w.P, w.together = corrected, len(members)*max(1, w.picked)
			if w.why = w.hopeless(w.together); w.why == "" {
				w.finding = w.Find(max(stats.Matters, w.noise))
			}
		}
	}
	return all
}

// unable says why a pair cannot be tested.
func (p pair) unable() string {
	wanted := enough
	if p.beside {
		wanted = enoughPairs
	}
	switch {
	case p.unsound != "":
		return p.unsound
	case len(p.a) < wanted && p.counted != "":
		return fmt.Sprintf("%s, %d are wanted", plural(len(p.a), p.counted), wanted)
	case len(p.a) < wanted || len(p.b) < wanted:
		return fmt.Sprintf("%d and %d repetitions, %d each are wanted", len(p.a), len(p.b), wanted)
	case slices.Min(p.a) <= 0 || slices.Min(p.b) <= 0:
		return "a repetition has none"
	case slices.Contains(p.places, 1):
		return "places were measured once, and what one differs from itself by is not known"
	}
	return ""
}

// hopeless says why no difference, however large, could be told from luck among
// so many that are read together.
func (p pair) hopeless(together int) string {
	least := stats.LeastUnpaired(len(p.a), len(p.b))
	if p.beside {
		least = stats.LeastPaired(len(p.a))
	}
	if p.family == "" || float64(together)*least < stats.Surely {
		return ""
	}
	return plural(len(p.a), cmp.Or(p.counted, "repetition")) + " are too few to tell luck among so many figures of a kind: repeat more often, or compare fewer steps"
}

func (p pair) compare() stats.Comparison {
	switch {
	case p.places != nil:
		return stats.ComparePlaces(p.byPlace())
	case p.beside:
		return stats.ComparePairs(p.a, p.b)
	}
	return stats.Compare(p.a, p.b)
}

func (p pair) ratio() stats.Ratio {
	switch {
	case p.places != nil:
		return stats.ComparePlaces(p.byPlace()).Ratio
	case p.beside && len(p.a) == len(p.b):
		return stats.PairedRatio(p.a, p.b)
	}
	return stats.MedianRatio(p.a, p.b)
}

// quotients are those of values that were measured beside each other.
func (p pair) quotients() []float64 {
	all := make([]float64, len(p.a))
	for i := range all {
		all[i] = p.a[i] / p.b[i]
	}
	return all
}

func (p pair) byPlace() (places [][]float64) {
	all := p.quotients()
	for _, n := range p.places {
		places, all = append(places, all[:n]), all[n:]
	}
	return places
}

// noise is the part by which a thing differs from itself. Where it was measured
// twice, that is the farther end of the interval of its ratio to itself; else
// what repetitions differ by: within places, or between halves of a side.
func (p pair) noise() float64 {
	switch {
	case p.again != nil:
		return max(p.again.High, 1/p.again.Low) - 1
	case p.places != nil:
		return stats.NoiseInPlaces(p.byPlace())
	case p.beside:
		return stats.Noise(p.quotients())
	}
	return max(stats.Noise(p.a), stats.Noise(p.b))
}
