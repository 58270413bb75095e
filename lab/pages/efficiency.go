package pages

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// efficiency is what a load does in the guests of an arm, by what it does with the same
// stack outside of a guest.
type efficiency struct {
	guest, outside *flow
	m              measure
	pair           pair        // of the repetitions that both have
	ratio          stats.Ratio // their quotients' median; not a number without one
	remark         string      // what else is to be known of it
}

// efficiencies are those of every load at every step, in the plan's order.
func (f *facts) efficiencies() (all []efficiency) {
	for _, outside := range f.run.Plan.Outside() {
		for _, load := range f.loadNames() {
			m := f.measure(load)
			for _, step := range f.run.Plan.Steps {
				for _, arm := range f.run.Plan.InGuests() {
					guest, base := f.find(step.Name, arm.Name, load, m.op), f.find(step.Name, outside.Name, load, m.op)
					if guest != nil && base != nil {
						all = append(all, f.efficiency(guest, base, m))
					}
				}
			}
		}
	}
	return all
}

func (f *facts) efficiency(guest, outside *flow, m measure) efficiency {
	e := efficiency{guest: guest, outside: outside, m: m, remark: cmp.Or(f.remark(guest.step, guest.arm), f.remark(outside.step, outside.arm))}
	p := pair{what: fmt.Sprintf("throughput of %s, in guests against outside of one,", e.name(f)), unit: "1/s", beside: true}
	for i, repetition := range guest.turns {
		if j := slices.Index(outside.turns, repetition); j >= 0 {
			p.a, p.b = append(p.a, m.each(guest)*guest.rates[i]), append(p.b, m.each(outside)*outside.rates[j])
		}
	}
	e.pair = f.sane(p, guest, outside)
	e.ratio = stats.PairedRatio(nil, nil)
	if len(p.b) > 0 && slices.Min(p.b) > 0 {
		e.ratio = stats.PairedRatio(p.a, p.b)
	}
	return e
}

// name is that of what was measured, with its arm if there is more than one of guests.
func (e efficiency) name(f *facts) string {
	words := e.guest.load + " at " + e.guest.step
	if len(f.run.Plan.InGuests()) > 1 {
		words += ", " + e.guest.arm
	}
	return words + e.against(f)
}

// against names the arm outside of guests where that is not plain: there are several,
// or it has its own of what the step says of the guests, as one instance in the place of
// many.
func (e efficiency) against(f *facts) string {
	arms := f.run.Plan.Outside()
	own := arms[slices.IndexFunc(arms, func(a record.Arm) bool { return a.Name == e.outside.arm })].Set
	at := f.run.Plan.Steps[f.place(e.outside.step)].Axes
	var words []string
	for _, axis := range runsAlong {
		if value, has := own[axis]; has && at[axis] != value {
			words = append(words, axis+"="+value)
		}
	}
	switch {
	case len(words) > 0:
		return fmt.Sprintf(", against %s (%s)", e.outside.arm, strings.Join(words, ", "))
	case len(arms) > 1:
		return ", against " + e.outside.arm
	}
	return ""
}

// told is the figure, or why there is none to be believed.
func (e efficiency) told() string {
	if e.pair.unsound != "" {
		return e.pair.unsound
	}
	return percent(e.ratio.Value) + e.remark
}

// interval is that of the figure, as a part of the hundred.
func (e efficiency) interval() string {
	if e.pair.unsound != "" || !(e.ratio.Low < e.ratio.High) {
		return "–"
	}
	return number(100*e.ratio.Low) + "–" + percent(e.ratio.High)
}

const efficiencyTitle = "Efficiency: in guests, by the same stack outside of a guest"

const aboutEfficiency = "What guests do by what the same files, services and agent do outside of a guest, on as many processors and in as much memory, under the same load; where it says so, one instance in the place of several guests."

// efficiencyTable has a row for each.
func (f *facts) efficiencyTable() lab.Table {
	t := lab.Table{Title: efficiencyTitle, Head: []string{"load, arm", "step", "told in", "in guests", "outside", "efficiency", "95 %", "repetitions"}}
	for _, e := range f.efficiencies() {
		t.Rows = append(t.Rows, []string{
			e.guest.load + ", " + e.guest.arm + e.against(f), e.guest.step, e.m.label, number(stats.Median(e.pair.a)), number(stats.Median(e.pair.b)),
			e.told(), e.interval(), fmt.Sprint(len(e.pair.a)),
		})
	}
	return t
}

// efficient says it in words: as a quotient, and what may be said of that.
func (f *facts) efficient() (said []string) {
	if len(f.run.Plan.Outside()) == 0 {
		return nil
	}
	var pairs []pair
	for _, e := range f.efficiencies() {
		within := ""
		if e.interval() != "–" {
			within = " (95 % " + e.interval() + ")"
		}
		if e.pair.unsound == "" {
			said = append(said, fmt.Sprintf("Efficiency of %s: the guests do %s%s of what the same stack does outside of a guest.", e.name(f), e.told(), within))
		}
		pairs = append(pairs, e.pair)
	}
	if len(pairs) == 0 {
		return []string{"Efficiency was not measured: " + f.whyNotOutside() + "."}
	}
	return append(said, under("Efficiency", findings(weigh(pairs)))...)
}

// whyNotOutside is the first reason that the run gives.
func (f *facts) whyNotOutside() string {
	if all := f.events(record.Skipped, record.WhatOutside); len(all) > 0 {
		return all[0].Text
	}
	return "nothing was measured on both sides"
}

// efficiencyPictures are the quotients, and the two sides of them, load by load. More
// than fit into one picture are in the table alone.
func (f *facts) efficiencyPictures() (all []drawing) {
	every := f.efficiencies()
	for _, load := range f.loadNames() {
		var some []efficiency
		for _, e := range every {
			if e.guest.load == load {
				some = append(some, e)
			}
		}
		if len(some) > 0 && len(some) <= mostBars {
			all = append(all, f.quotientBars(load, some), f.bothBars(load, some))
		}
	}
	return all
}

func (f *facts) quotientBars(load string, some []efficiency) drawing {
	b := plot.Bars{
		Title: "Efficiency of " + plain(load), Axis: plot.Axis{Label: "of what is done outside of a guest", Format: percent}, Kinds: []plot.Kind{{Name: "in guests", Look: plot.Blue}},
		Marks: []plot.Mark{{At: 1, Name: "outside"}}, About: aboutEfficiency + " Medians of quotients, with the interval that holds the true one with 95 %.",
	}
	for _, e := range some {
		bar := plot.Bar{Value: e.ratio.Value, Note: percent(e.ratio.Value)}
		if e.ratio.Low < e.ratio.High {
			bar.Low, bar.High = e.ratio.Low, e.ratio.High
		}
		if e.pair.unsound != "" || math.IsNaN(e.ratio.Value) {
			bar = plot.Bar{None: plain(e.told())}
		}
		b.Groups = append(b.Groups, plot.Group{Name: plain(f.groupOf(e)), Bars: []plot.Bar{bar}})
	}
	return drawing{b.Title, b.About, func(id string) template.HTML { b.ID = id; return b.SVG() }}
}

func (f *facts) bothBars(load string, some []efficiency) drawing {
	b := plot.Bars{
		Title: "Throughput of " + plain(load) + ", in guests and outside", Axis: plot.Axis{Label: some[0].m.label, Format: tick},
		Kinds: []plot.Kind{{Name: "in guests", Look: look(0)}, {Name: "the same stack outside of a guest", Look: look(1)}}, About: aboutRates,
	}
	for _, e := range some {
		b.Groups = append(b.Groups, plot.Group{Name: plain(f.groupOf(e)), Bars: []plot.Bar{f.bar(e.guest, e.m), f.bar(e.outside, e.m)}})
	}
	return drawing{b.Title, b.About, func(id string) template.HTML { b.ID = id; return b.SVG() }}
}

// groupOf names a step by the axes that tell it apart, with its arm if there is more
// than one.
func (f *facts) groupOf(e efficiency) string {
	words := placed(f.run.Plan.Steps[f.place(e.guest.step)].Axes, f.shape.axes)
	if words == "" {
		words = e.guest.step
	}
	if len(f.run.Plan.InGuests()) > 1 {
		words += ", " + e.guest.arm
	}
	return words + e.against(f)
}

// The bar of a hundred per cent on a terminal, and how far beyond it goes.
const (
	whole  = 40
	beyond = 2 * whole
)

// efficiencyText draws bars of letters, for a terminal.
func (f *facts) efficiencyText() string {
	var names []string
	longest := 0
	every := f.efficiencies()
	for _, e := range every {
		names = append(names, plain(e.name(f)))
		longest = max(longest, utf8.RuneCountInString(names[len(names)-1]))
	}
	var out strings.Builder
	for i, e := range every {
		full := 0
		if e.pair.unsound == "" && e.ratio.Value > 0 {
			full = int(min(e.ratio.Value*whole+0.5, beyond))
		}
		bar := strings.Repeat("█", full) + strings.Repeat("░", max(0, whole-full))
		gap := strings.Repeat(" ", longest-utf8.RuneCountInString(names[i]))
		fmt.Fprintf(&out, "%s%s  %s %s\n", names[i], gap, bar, plain(e.told()))
	}
	return out.String()
}
