package pages

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// contest is between the values of an axis, of one load at one kind of work: which
// does most, where all other axes are held equal.
type contest struct {
	axis, load, work string
	choices          []string // that were measured beside each other, in the plan's order
	apart            []string // that were measured, and nowhere beside those
	ranking          []string // the choices, by what they do in the mean of places, the best first
	met              []place  // where all choices were measured, those of one place together
	repeated         []int    // how many of those each place has
	values           map[string]map[place]float64
	pairs            map[[2]string]*weighed
}

// place is where something was measured on the axes that are held equal, and when.
type place struct {
	at         string
	repetition int
}

// kinds of work are looked at apart: one is not more than another.
const workAxis = "work"

// chosen are the axes whose values are choices. How many there are of a thing is
// none, but for the threads that share a disk.
func (f *facts) chosen() (axes []string) {
	for _, axis := range f.shape.axes {
		if axis != workAxis && (axis == "threads" || !slices.Contains(runsAlong, axis)) {
			axes = append(axes, axis)
		}
	}
	return axes
}

// works are the kinds of work; one without a name where there are none.
func (f *facts) works() []string {
	if !slices.Contains(f.shape.axes, workAxis) {
		return []string{""}
	}
	var all []string
	for _, step := range f.run.Plan.Steps {
		if work := step.Axes[workAxis]; !slices.Contains(all, work) {
			all = append(all, work)
		}
	}
	return all
}

// ofWork tells of a place on the axes whether it is of a kind of work; of "" all are.
func ofWork(work string) func(axes map[string]string) bool {
	return func(axes map[string]string) bool { return work == "" || axes[workAxis] == work }
}

// contests are those of every axis that has choices: axis by axis, load by load and
// work by work. They are made once: the verdict, a table and pictures tell of them.
func (f *facts) contests() []*contest {
	if f.contested != nil {
		return f.contested
	}
	f.contested = []*contest{}
	var pairs []pair
	type of struct {
		*contest
		key [2]string
	}
	var owners []of
	for _, axis := range f.chosen() {
		for _, load := range f.loadNames() {
			for _, work := range f.works() {
				c := f.contest(axis, load, work)
				if len(c.choices) < 2 {
					continue
				}
				f.contested = append(f.contested, c)
				for i, better := range c.ranking {
					for _, other := range c.ranking[i+1:] {
						pairs = append(pairs, c.between(better, other))
						owners = append(owners, of{c, [2]string{better, other}})
					}
				}
			}
		}
	}
	for i, w := range weigh(pairs) {
		owners[i].pairs[owners[i].key] = &w
	}
	return f.contested
}

// between pairs two choices, place by place. All pairs of an axis are read together,
// whichever of them are told, for any might have been.
func (c *contest) between(better, other string) pair {
	p := pair{
		what:   fmt.Sprintf("throughput of %s with %s, against %s,", strings.TrimSpace(c.load+" "+c.work), c.spelt(better), c.spelt(other)),
		family: "choices of " + c.axis + " for " + c.load, beside: true, counted: "pair", places: c.repeated,
	}
	for _, at := range c.met {
		p.a, p.b = append(p.a, c.values[better][at]), append(p.b, c.values[other][at])
	}
	return p
}

func byPlace(a, b place) int {
	return cmp.Or(cmp.Compare(a.at, b.at), a.repetition-b.repetition)
}

// contest gathers what the choices of an axis did, in the places that all of them
// have: each then has met the same.
func (f *facts) contest(axis, load, work string) *contest {
	c := &contest{axis: axis, load: load, work: work, pairs: map[[2]string]*weighed{}}
	c.values, c.choices = f.choiceValues(axis, load, work)
	c.meet()
	for len(c.met) == 0 && len(c.choices) > 1 {
		// The one that was measured least stands aside.
		least := c.choices[0]
		for _, choice := range c.choices {
			if len(c.values[choice]) <= len(c.values[least]) {
				least = choice
			}
		}
		c.choices = slices.DeleteFunc(slices.Clone(c.choices), func(choice string) bool { return choice == least })
		c.apart = append(c.apart, least)
		c.meet()
	}
	c.rank()
	return c
}

// meet finds where all choices were measured. A place that was measured once tells
// less than chance does, and is left out where others were repeated.
func (c *contest) meet() {
	c.met, c.repeated = nil, nil
	if len(c.choices) == 0 {
		return
	}
	times := map[string]int{}
	for at := range c.values[c.choices[0]] {
		if !slices.ContainsFunc(c.choices, func(choice string) bool { _, ok := c.values[choice][at]; return !ok }) {
			c.met = append(c.met, at)
			times[at.at]++
		}
	}
	once := func(at place) bool { return times[at.at] == 1 }
	if slices.ContainsFunc(c.met, func(at place) bool { return !once(at) }) {
		c.met = slices.DeleteFunc(c.met, once)
	}
	slices.SortFunc(c.met, byPlace)
	for from := 0; from < len(c.met); from += times[c.met[from].at] {
		c.repeated = append(c.repeated, times[c.met[from].at])
	}
}

// rank sorts the choices as the quotients of their pairs do, in which every place
// weighs the same.
func (c *contest) rank() {
	means := map[string]float64{}
	for _, choice := range c.choices {
		from := 0
		for _, n := range c.repeated {
			for _, at := range c.met[from : from+n] {
				means[choice] += math.Log(c.values[choice][at]) / float64(n)
			}
			from += n
		}
	}
	c.ranking = slices.Clone(c.choices)
	slices.SortStableFunc(c.ranking, func(a, b string) int { return cmp.Compare(means[b], means[a]) })
}

// choiceValues are what each choice did in every place, and the choices that did
// something in the plan's order. What is not to be believed is left out.
func (f *facts) choiceValues(axis, load, work string) (values map[string]map[place]float64, measured []string) {
	m, doubts := f.measure(load), f.doubts()
	others := append(slices.DeleteFunc(slices.Clone(f.shape.axes), func(a string) bool { return a == axis }), armAxis)
	values = map[string]map[place]float64{}
	for _, at := range f.spots() {
		w := f.find(at.step, at.arm, load, m.op)
		if w == nil || !ofWork(work)(at.axes) || doubts[figureName{step: at.step, arm: at.arm}] != "" {
			continue
		}
		choice := at.axes[axis]
		if values[choice] == nil {
			values[choice] = map[place]float64{}
			measured = append(measured, choice)
		}
		for i, rate := range w.rates {
			values[choice][place{placed(at.axes, others), w.turns[i]}] = m.each(w) * rate
		}
	}
	return values, measured
}

// spelt is a choice in words.
func (c *contest) spelt(choice string) string { return c.axis + "=" + choice }

// of is what the contest is about, beside its axis.
func (c *contest) of(loads int) string {
	if loads < 2 {
		return c.work
	}
	return strings.TrimSpace(c.load + " " + c.work)
}

func (c *contest) best() string { return c.ranking[0] }

func (c *contest) next() *weighed { return c.pairs[[2]string{c.ranking[0], c.ranking[1]}] }

func (c *contest) last() *weighed {
	return c.pairs[[2]string{c.ranking[0], c.ranking[len(c.ranking)-1]}]
}

// won tells whether the best is told from all others.
func (c *contest) won() bool { return c.next().finding == stats.More }

// summit is the place of all that does most, and the one after it.
type summit struct {
	load, work  string
	first, next *flow
	*weighed
}

// summits are those of every load's every kind of work. They were picked among all
// pairs that there are.
func (f *facts) summits() (all []summit) {
	if len(f.chosen()) == 0 {
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
			first, next := flows[0], flows[1]
			all = append(all, summit{load: load, work: work, first: first, next: next})
			p := f.sane(pair{what: "throughput of " + strings.TrimSpace(load+" "+work), a: scaled(first, m), b: scaled(next, m)}, first, next)
			p.picked, p.family = len(flows)*(len(flows)-1)/2, "summits"
			pairs = append(pairs, p)
		}
	}
	for i, w := range weigh(pairs) {
		all[i].weighed = &w
	}
	return all
}

// highest are a load's flows where something holds of the axes, the one that does
// most first.
func (f *facts) highest(load string, holds func(axes map[string]string) bool) (flows []*flow) {
	m := f.measure(load)
	for _, at := range f.spots() {
		if w := f.find(at.step, at.arm, load, m.op); w != nil && holds(at.axes) {
			flows = append(flows, w)
		}
	}
	slices.SortStableFunc(flows, func(a, b *flow) int { return cmp.Compare(m.each(b)*b.rate.Value, m.each(a)*a.rate.Value) })
	return flows
}

// whereOn is a flow's place on some axes.
func (f *facts) whereOn(w *flow, axes []string) string {
	at := maps.Clone(f.run.Plan.Steps[f.place(w.step)].Axes)
	if at == nil {
		at = map[string]string{}
	}
	at[armAxis] = w.arm
	if len(f.run.Plan.InGuests()) > 1 {
		axes = append(slices.Clone(axes), armAxis)
	}
	return cmp.Or(short(at, axes), record.Labels(at).Key())
}
