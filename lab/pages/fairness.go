package pages

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab/stats"
)

// A tile is treated worse than the others if it gets less than they do by more than this
// part, and by more than chance makes of so few operations.
const (
	unfair = 0.10
	surely = 3.3 // standard errors: one case in a thousand
)

// mostTold is how many sentences of one kind there are at most; tables have the rest.
const mostTold = 5

// fairness names the tiles that got less than others, load by load.
func (f *facts) fairness() (said []string) {
	for _, w := range f.flows {
		if w.op != all || len(w.tiles) < 2 {
			continue
		}
		if words := f.worse(w); words != "" {
			said = append(said, words)
		}
	}
	return atMost(said, "unfair shares")
}

// atMost keeps sentences of one kind from filling the page.
func atMost(said []string, what string) []string {
	if more := len(said) - mostTold; more > 0 {
		said = append(said[:mostTold:mostTold], fmt.Sprintf("There are %d more %s: see the tables.", more, what))
	}
	return said
}

// worse says which tiles of a flow got less than the others do in the middle.
func (f *facts) worse(w *flow) string {
	got := f.got(w)
	var tiles []string
	var mine, theirs float64
	for _, tile := range slices.SortedFunc(maps.Keys(got), byNumber) {
		rest := others(got, tile)
		if rest > 0 && got[tile]/rest < 1-max(unfair, f.luck(w, tile, len(got)-1)) {
			if tiles = append(tiles, tile); len(tiles) == 1 || got[tile] < mine {
				mine, theirs = got[tile], rest
			}
		}
	}
	if len(tiles) == 0 {
		return ""
	}
	name, subject := fmt.Sprintf("%s at %s", w.name(), w.step), "tile "+tiles[0]+" was"
	if len(tiles) > 1 {
		subject = fmt.Sprintf("tiles %s were", strings.Join(tiles[:min(len(tiles), 8)], ", "))
	}
	if w.open {
		return fmt.Sprintf("Unfair: %s: %s served less than the others, at least %s of what was offered where the others were served %s.", name, subject, percent(mine), percent(theirs))
	}
	words := fmt.Sprintf("Unfair: %s: %s given less than the others, at least %s a second where the others did %s", name, subject, number(mine), number(theirs))
	if f.unoffered[w.load] {
		words += "; the record does not hold what each was offered, but chance hardly makes that"
	}
	return words + "."
}

// got is what is compared: yields, or what tiles did where what was offered is not known.
func (f *facts) got(w *flow) map[string]float64 {
	if got := f.yields(w); got != nil {
		return got
	}
	all := map[string]float64{}
	for tile, rates := range w.tiles {
		all[tile] = stats.Median(rates)
	}
	return all
}

// others is what all tiles but one got, in the middle.
func others(got map[string]float64, but string) float64 {
	var all []float64
	for tile, one := range got {
		if tile != but {
			all = append(all, one)
		}
	}
	return stats.Median(all)
}

// luck is by which part a tile may do less than so many others by chance alone. An open load
// is measured by what it was offered, which leaves chance little. Older labs offered the
// same in each repetition: many tell no more than one.
func (f *facts) luck(w *flow, tile string, others int) float64 {
	if w.open {
		return 0
	}
	sum := 0.0
	for _, rate := range w.rates {
		sum += rate
	}
	if !(sum > 0) {
		return math.Inf(1)
	}
	done := 0.0
	for _, rate := range w.tiles[tile] {
		done += rate / sum * w.sum.done
	}
	rest := (w.sum.done - done) / float64(max(others, 1))
	if f.unoffered[w.load] {
		done, rest = done/float64(len(w.turns)), rest/float64(len(w.turns))
	}
	return surely * math.Sqrt(1/max(done, 1)+1/(max(rest, 1)*float64(max(others, 1))))
}
