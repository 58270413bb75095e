package pages

import (
	"fmt"
	"html/template"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// Which choice wins where, in words, tables and pictures.

// winners say of each axis which choice wins, for which work, and by how much.
func (f *facts) winners() (said []string) {
	contests := f.contests()
	for _, axis := range f.chosen() {
		var clauses, reasons []string
		silent := map[string][]string{}
		for _, c := range contests {
			if c.axis != axis {
				continue
			}
			clause, why := c.clause(len(f.ops))
			if clause != "" {
				clauses = append(clauses, clause)
				continue
			}
			if silent[why] == nil {
				reasons = append(reasons, why)
			}
			silent[why] = append(silent[why], c.of(len(f.ops)))
		}
		for _, why := range reasons {
			clauses = append(clauses, strings.TrimSpace(why)+forAll(silent[why]))
		}
		if len(clauses) > 0 {
			said = append(said, fmt.Sprintf("Choice of %s: %s.", axis, strings.Join(clauses, "; ")))
		}
	}
	return said
}

// forAll names the kinds of work that something is true of; nothing of the one that
// has no name.
func forAll(works []string) string {
	if works = slices.DeleteFunc(works, func(w string) bool { return w == "" }); len(works) == 0 {
		return ""
	}
	return " for " + strings.Join(works, ", ")
}

// clause says who wins, or why nobody does: then for several works at once.
func (c *contest) clause(loads int) (clause, why string) {
	next, last := c.next(), c.last()
	name := ""
	if of := c.of(loads); of != "" {
		name = "for " + of + " "
	}
	end := len(c.ranking) - 1
	switch {
	case c.won() && end > 1:
		return fmt.Sprintf("%s%s wins, with %s and %s", name, c.best(), next.times("the next, "+c.ranking[1]), last.times("the last, "+c.ranking[end])), ""
	case c.won():
		return fmt.Sprintf("%s%s wins, with %s", name, c.best(), next.times(c.ranking[1])), ""
	case last.finding == stats.More:
		return fmt.Sprintf("%s%s and %s are not told apart, and %s does %s", name, c.best(), c.ranking[1], c.best(), last.times("the last, "+c.ranking[end])), ""
	case last.why != "":
		return "", "no verdict (" + last.why + ")"
	case last.settled():
		return "", "no difference of more than " + percent(stats.Matters)
	}
	settles := strings.TrimSuffix(last.settles(), ".")
	return fmt.Sprintf("%snot settled: %s does %s, p %.2g (%s)", name, c.best(), last.times("the last, "+c.ranking[end]), last.P, strings.ToLower(settles[:1])+settles[1:]), ""
}

// times is a ratio to somebody, with its interval, and in how many places it is one:
// what is true of their mean need not be so everywhere.
func (w *weighed) times(whom string) string {
	words := number(w.Ratio.Value) + " times " + whom
	if w.Ratio.Low < w.Ratio.High {
		words += " (95 % " + interval(w.Ratio) + ")"
	}
	switch more := w.inPlaces().more; {
	case more < len(w.places):
		words += fmt.Sprintf(", more in %d of %d places", more, len(w.places))
	case more > 1:
		words += fmt.Sprintf(", more in all %d places", more)
	}
	return words
}

// span is what a pair comes to in single places: in how many the first has more, and
// between what their ratios lie.
type span struct {
	more        int
	least, most float64
}

func (w *weighed) inPlaces() span {
	s := span{least: math.Inf(1), most: math.Inf(-1)}
	for _, quotients := range w.byPlace() {
		ratio := stats.GeometricMean(quotients)
		s.least, s.most = min(s.least, ratio), max(s.most, ratio)
		if ratio > 1 {
			s.more++
		}
	}
	return s
}

// winnerTables are the contests, and the places where most is done of all.
func (f *facts) winnerTables() []lab.Table {
	t := lab.Table{
		Title: "Which choice wins where, all else equal",
		Head:  []string{"choice of", "for", "best", "beside", "which is", "times it", "95 %", "p, corrected", "noise", "pairs", "more in places", "in single ones", "finding"},
	}
	for _, c := range f.contests() {
		add := func(rank int, what string) {
			w := c.pairs[[2]string{c.best(), c.ranking[rank]}]
			cells, in := w.cells(), w.inPlaces() // what, a, b, ratio, interval, effect, p, noise, outcome
			t.Rows = append(t.Rows, []string{
				c.axis, c.of(len(f.ops)), c.best(), c.ranking[rank], what, cells[3], cells[4], cells[6], cells[7], fmt.Sprint(len(w.a)),
				fmt.Sprintf("%d of %d", in.more, len(w.places)), interval(stats.Ratio{Low: in.least, High: in.most}), w.won(),
			})
		}
		if add(1, "next"); len(c.ranking) > 2 {
			add(len(c.ranking)-1, "last")
		}
		for _, choice := range c.apart {
			t.Rows = append(t.Rows, []string{c.axis, c.of(len(f.ops)), "–", choice, "apart", "–", "–", "–", "–", "0", "–", "–", "measured nowhere beside the others"})
		}
	}
	return []lab.Table{t, f.summitTable()}
}

// won is the outcome for the one that is ahead.
func (w *weighed) won() string {
	if w.why == "" && w.finding == stats.More {
		return "wins"
	}
	return w.outcome()
}

func (f *facts) summitTable() lab.Table {
	t := lab.Table{Title: "Best place of all", Head: []string{"for", "place", "it does", "95 %", "of", "next best", "times it", "95 %", "finding"}}
	rest := f.chosen()
	for _, s := range f.summits() {
		m := f.measure(s.load)
		name := s.work
		if len(f.ops) > 1 || name == "" {
			name = strings.TrimSpace(s.load + " " + s.work)
		}
		r := s.first.rate
		each := m.each(s.first)
		r = stats.Ratio{Value: each * r.Value, Low: each * r.Low, High: each * r.High}
		cells := s.cells()
		t.Rows = append(t.Rows, []string{name, f.whereOn(s.first, rest), number(r.Value), interval(r), m.label, f.whereOn(s.next, rest), cells[3], cells[4], s.won()})
	}
	return t
}

// choicePictures show who wins by how much, and the best of all by threads.
func (f *facts) choicePictures(load string) []drawing {
	var contests []*contest
	for _, c := range f.contests() {
		if c.load == load {
			contests = append(contests, c)
		}
	}
	if len(contests) == 0 {
		return nil
	}
	return []drawing{f.choiceGrid(load, contests), f.bestOf(load)}
}

// choiceGrid has a field of bars for each axis and each kind of work.
func (f *facts) choiceGrid(load string, contests []*contest) drawing {
	g := plot.Grid{
		Title: "Which choice wins where: " + plain(load), Look: plot.Blue, Axis: plot.Axis{Label: "of the best", Format: percent, Ticks: []float64{0, 0.5, 1}},
		About: "What each choice does by what the best of them does, all else equal: the geometric mean over places of what pairs of turns there come to, with the interval that holds the true one with 95 %. A full bar is a winner: told from all others beyond chance and noise.",
	}
	works := f.works()
	for _, work := range works {
		g.Columns = append(g.Columns, plain(work))
	}
	for _, axis := range f.chosen() {
		r := plot.GridRow{Name: plain(axis)}
		var names []string
		of := map[string]*contest{}
		for _, c := range contests {
			if c.axis == axis {
				of[c.work] = c
			}
		}
		for _, step := range f.run.Plan.Steps {
			choice := step.Axes[axis]
			if !slices.Contains(names, choice) && slices.ContainsFunc(slices.Collect(maps.Values(of)), func(c *contest) bool { return slices.Contains(c.choices, choice) }) {
				names = append(names, choice)
			}
		}
		for _, name := range names {
			line := plot.GridLine{Name: plain(name)}
			for _, work := range works {
				line.Bars = append(line.Bars, of[work].bar(name))
			}
			r.Lines = append(r.Lines, line)
		}
		if len(r.Lines) > 0 {
			g.Rows = append(g.Rows, r)
		}
	}
	return drawing{g.Title, g.About, func(id string) template.HTML { g.ID = id; return g.SVG() }}
}

// bar is a choice's, as a part of what the best does.
func (c *contest) bar(choice string) plot.GridBar {
	if c == nil || !slices.Contains(c.choices, choice) {
		return plot.GridBar{Bar: plot.Bar{None: "–"}}
	}
	if choice == c.best() {
		note := percent(1)
		if c.won() {
			note = "wins"
		}
		return plot.GridBar{Bar: plot.Bar{Value: 1, Note: note}, Strong: c.won()}
	}
	r := c.pairs[[2]string{c.best(), choice}].Ratio
	bar := plot.Bar{Value: 1 / r.Value, Note: percent(1 / r.Value)}
	if math.IsNaN(bar.Value) || math.IsInf(bar.Value, 0) {
		return plot.GridBar{Bar: plot.Bar{None: "–"}}
	}
	if r.Low < r.High && r.Low > 0 {
		bar.Low, bar.High = 1/r.High, 1/r.Low
	}
	return plot.GridBar{Bar: bar}
}

// bestOf is the best of all choices, by work and threads.
func (f *facts) bestOf(load string) drawing {
	m := f.measure(load)
	p := plot.Matrix{
		Title: "Best of all choices: " + plain(load), Look: plot.Teal, Log: true,
		About: fmt.Sprintf("What the best place of all does, %s, and where it lies. Medians over repetitions; whether the next best is told from it is in a table.", m.label),
	}
	rest, across := f.chosen(), []string{""}
	if slices.Contains(rest, "threads") {
		p.Across, across = "threads", nil
		rest = slices.DeleteFunc(rest, func(axis string) bool { return axis == "threads" })
		for _, step := range f.run.Plan.Steps {
			if n := step.Axes["threads"]; !slices.Contains(across, n) {
				across = append(across, n)
			}
		}
		slices.SortFunc(across, byNumber)
	}
	for _, n := range across {
		p.Columns = append(p.Columns, plain(n))
	}
	for _, work := range f.works() {
		r := plot.MatrixRow{Name: plain(work)}
		for _, n := range across {
			cell := plot.Cell{None: "–"}
			flows := f.highest(load, func(axes map[string]string) bool {
				return ofWork(work)(axes) && (n == "" || axes["threads"] == n)
			})
			if len(flows) > 0 {
				if value := m.each(flows[0]) * flows[0].rate.Value; value > 0 {
					cell = plot.Cell{Value: value, Note: number(value), Words: f.whereOn(flows[0], rest)}
				}
			}
			r.Cells = append(r.Cells, cell)
		}
		p.Rows = append(p.Rows, r)
	}
	return drawing{p.Title, p.About, func(id string) template.HTML { p.ID = id; return p.SVG() }}
}
