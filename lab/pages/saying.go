package pages

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// What is said of each kind of scenario. Medians are told as they are; that one is
// more or less than another is told only by findings, and so never below the noise.

// under puts findings of one kind under their name.
func under(name string, said []string) []string {
	for i := range said {
		said[i] = name + ": " + said[i]
	}
	return said
}

// held says up to where along the axis each bound was kept.
func (f *facts) held() (said []string) {
	for _, b := range f.run.Plan.Bounds {
		for _, l := range f.lines {
			kept, first := "", ""
			for _, step := range l.steps {
				broken, of := f.broken(b, step.Name, l.arm)
				if of == 0 {
					continue
				}
				if broken > 0 {
					first = fmt.Sprintf("%s=%s, in %s of %d", f.shape.along, step.Axes[f.shape.along], plural(broken, "window"), of)
					break
				}
				kept = step.Axes[f.shape.along]
			}
			name := strings.TrimPrefix(l.name+": ", ": ")
			switch {
			case first == "": // all kept, or nothing measured
			case kept == "":
				said = append(said, fmt.Sprintf("%s%s is broken at %s already.", name, boundName(b), first))
			default:
				said = append(said, fmt.Sprintf("%s%s holds up to %s=%s and is first broken at %s.", name, boundName(b), f.shape.along, kept, first))
			}
		}
	}
	return said
}

// ends are the flows between which a line is weighed: of one tile, or else of its
// first step, and of its last.
func (f *facts) ends(l line, load string) (first, last *flow) {
	m := f.measure(load)
	for _, step := range l.steps {
		if w := f.find(step.Name, l.arm, load, m.op); w != nil {
			if first == nil {
				first = w
			}
			last = w
		}
	}
	if first == last {
		return nil, nil
	}
	return first, last
}

// addUp says how the most tiles do beside one, or the most processors beside the
// fewest, load by load, and what may be said of that. Lines that are too many for a
// picture are too many for words; and an axis of choices has its own.
func (f *facts) addUp() (said []string) {
	if len(f.lines) > mostLines || slices.Contains(f.chosen(), f.shape.along) {
		return nil
	}
	var pairs []pair
	var untold []string
	for _, load := range f.loadNames() {
		for _, l := range f.lines {
			first, last := f.ends(l, load)
			if first == nil || !(stats.Median(first.rates) > 0) {
				continue
			}
			if f.unoffered[load] && len(last.tiles) > 1 {
				untold = append(untold, load)
				break
			}
			r := stats.MedianRatio(last.rates, first.rates)
			within := ""
			if r.Low < r.High {
				within = " (95 % " + interval(r) + ")"
			}
			name, n := strings.TrimSuffix(load+", "+l.name, ", "), len(last.tiles)
			if n == 1 || len(first.tiles) > 1 {
				from, to := f.onAxis(first), f.onAxis(last)
				said = append(said, fmt.Sprintf("%s at %s does %s times%s what it does at %s.", name, to, number(r.Value), within, from))
				pairs = append(pairs, f.sane(pair{what: fmt.Sprintf("throughput of %s at %s, against %s,", name, to, from), unit: "1/s", a: last.rates, b: first.rates}, first, last))
				continue
			}
			words, what := f.beyondWords(name, first, last, r, within)
			said = append(said, words)
			p := f.beyondOne(last, first)
			p.what, p.unit = what, "1/s"
			pairs = append(pairs, f.sane(p, first, last))
		}
	}
	if len(untold) > 0 {
		said = append(said, fmt.Sprintf("%s: the record does not hold what was offered, because an older lab or an older image of guests made it. So neither shares nor how tiles add up can be told.", strings.Join(untold, ", ")))
	}
	return append(said, under("Along "+f.shape.along, findings(weigh(pairs)))...)
}

// beyondWords say how many tiles do beside one, and name the comparison. What an open
// load does depends on what chance offers it: it is told by what was served of that.
func (f *facts) beyondWords(name string, first, last *flow, r stats.Ratio, within string) (words, what string) {
	n, along := len(last.tiles), f.shape.along
	if last.open {
		return fmt.Sprintf("%s: %d %s were offered %s a second and served %s of it; one was offered %s and served %s.", name, n, along,
				number(stats.Median(last.offered())), percent(stats.Median(last.served)), number(stats.Median(first.offered())), percent(stats.Median(first.served))),
			fmt.Sprintf("served of offered of %s with %d %s, against one,", name, n, along)
	}
	words = fmt.Sprintf("%s: %d %s do %s times%s what one does, %s of linear", name, n, along, number(r.Value), within, percent(r.Value/float64(n)))
	if luck := chance(last.sum.done, first.sum.done); luck > stats.Matters {
		words += fmt.Sprintf("; chance alone makes ±%s of so few operations", percent(luck))
	}
	return words + ".", fmt.Sprintf("throughput of %s with %d %s, against %d times that of one,", name, n, along, n)
}

// onAxis is where a flow lies on the axis along which pictures run.
func (f *facts) onAxis(w *flow) string {
	return placed(f.run.Plan.Steps[f.place(w.step)].Axes, []string{f.shape.along})
}

// sane keeps a pair from a verdict where one of its flows is not to be believed.
func (f *facts) sane(p pair, flows ...*flow) pair {
	doubts := f.doubts()
	for _, w := range flows {
		if why := doubts[figureName{step: w.step, arm: w.arm}]; why != "" {
			p.unsound = why
		}
	}
	return p
}

// spans says between what the steps lie, where they go along nothing: of each kind
// of work, if there are kinds.
func (f *facts) spans() (said []string) {
	if len(f.lines) > 0 && len(f.lines) <= mostLines || len(f.run.Plan.Steps) < 2 {
		return nil
	}
	var pairs []pair
	for _, load := range f.loadNames() {
		m := f.measure(load)
		for _, work := range f.works() {
			flows := f.highest(load, ofWork(work))
			if len(flows) < 2 {
				continue
			}
			most, least := flows[0], flows[len(flows)-1]
			said = append(said, fmt.Sprintf("%s lies between %s (%s) and %s (%s), %s.", strings.TrimSpace(load+" "+work),
				number(m.each(least)*least.rate.Value), f.whereabouts(least), number(m.each(most)*most.rate.Value), f.whereabouts(most), m.label))
			p := f.sane(pair{what: fmt.Sprintf("throughput of %s, at its highest against its lowest,", strings.TrimSpace(load+" "+work)), unit: "1/s", a: scaled(most, m), b: scaled(least, m)}, least, most)
			// They were picked among so many pairs, of which any might have been it.
			p.picked, p.family = len(flows)*(len(flows)-1)/2, "picked"
			pairs = append(pairs, p)
		}
	}
	return append(said, under("Between steps", findings(weigh(pairs)))...)
}

func scaled(w *flow, m measure) []float64 {
	all := make([]float64, len(w.rates))
	for i, rate := range w.rates {
		all[i] = m.each(w) * rate
	}
	return all
}

func (f *facts) whereabouts(w *flow) string {
	if len(f.run.Plan.InGuests()) > 1 {
		return w.step + ", " + w.arm
	}
	return w.step
}

// done says what was done to guests, how long it took, and what it meant to loads.
func (f *facts) done() (said []string) {
	var pairs []pair
	for _, d := range f.deeds() {
		name := f.nameOf(d)
		if took := d.values["duration_s"]; len(took) > 0 {
			words := fmt.Sprintf("%s took %s", name, seconds(stats.Median(took)))
			if down := d.values["downtime_s"]; len(down) > 0 {
				words += fmt.Sprintf(", and the guest stood still for %s", seconds(stats.Median(down)))
			}
			said = append(said, fmt.Sprintf("%s (%s).", words, plural(d.times, "time")))
		}
		for _, load := range slices.Sorted(maps.Keys(d.loads)) {
			before, after := d.loads[load][record.MetricBefore], d.loads[load][record.MetricAfter]
			if len(before) == 0 || len(after) == 0 {
				continue
			}
			words := fmt.Sprintf("%s did %s in a second before %s and %s after it", load, number(stats.Median(before)), name, number(stats.Median(after)))
			if wait := d.loads[load][record.MetricPause]; len(wait) > 0 {
				words += fmt.Sprintf("; the longest that it waited meanwhile is %s", seconds(slices.Max(wait)))
			}
			said = append(said, words+".")
			p := pair{what: fmt.Sprintf("throughput of %s after %s, against before,", load, name), unit: "1/s", a: after, b: before}
			if why := f.doubts()[figureName{step: d.step, arm: d.arm}]; why != "" {
				p.unsound = why
			}
			pairs = append(pairs, p)
		}
	}
	return append(said, under("Around what was done", findings(weigh(pairs)))...)
}
