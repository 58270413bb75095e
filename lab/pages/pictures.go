package pages

import (
	"fmt"
	"html/template"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/sheet"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// patience is the response that people wait for without noticing much, s: the
// line that pictures of responses have.
const patience = 1.0

// look tells lines apart; after the fifth they come again, and their names are
// left to tell.
func look(line int) plot.Look { return plot.Blue + plot.Look(line%mostLines) }

// gallery collects pictures under headings.
type gallery struct {
	sections []section
	count    int
}

type section struct {
	ID, Title string
	Figures   []sheet.Figure
}

// drawing is a picture that lacks but its id.
type drawing struct {
	title, about string
	draw         func(id string) template.HTML
}

func (g *gallery) head(title string) {
	g.sections = append(g.sections, section{ID: fmt.Sprintf("pictures-%d", len(g.sections)+1), Title: plain(title)})
}

// put adds a picture, if there is something in it.
func (g *gallery) put(d drawing, ok bool) {
	if !ok {
		return
	}
	g.count++
	id := fmt.Sprintf("figure-%d", g.count)
	last := &g.sections[len(g.sections)-1]
	last.Figures = append(last.Figures, sheet.Figure{ID: id, Title: d.title, About: d.about, SVG: d.draw(id)})
}

func ofLines(l plot.Lines) drawing {
	return drawing{l.Title, l.About, func(id string) template.HTML { l.ID = id; return l.SVG() }}
}

// sections are the pictures of every load, and of what the host and the guests did.
func (f *facts) sections() (filled []section) {
	var g gallery
	for _, load := range f.loadNames() {
		g.head("Load " + load)
		for _, d := range f.choicePictures(load) {
			g.put(d, true)
		}
		for _, d := range f.throughput(load) {
			g.put(d, true)
		}
		for _, d := range f.responses(load) {
			g.put(d, true)
		}
		g.put(f.beside(load))
		for _, step := range f.lively() {
			g.put(f.course(load, step))
		}
	}
	g.head("Efficiency")
	for _, d := range f.efficiencyPictures() {
		g.put(d, true)
	}
	g.head("How they add up")
	g.put(f.together())
	g.head("What the host and the guests did meanwhile")
	for _, step := range f.lively() {
		g.put(f.host(step))
		g.put(f.insides(step))
	}
	for _, s := range g.sections {
		if len(s.Figures) > 0 {
			filled = append(filled, s)
		}
	}
	return filled
}

func (f *facts) loadNames() []string { return slices.Sorted(maps.Keys(f.ops)) }

// mostBars is how many groups of lying bars are one picture; more are a matrix.
const mostBars = 24

// throughput is a picture with columns where there is an axis with numbers to go
// along; with bars where the steps are few; and matrices of all others.
func (f *facts) throughput(load string) []drawing {
	m := f.measure(load)
	switch {
	case len(f.lines) > 0 && len(f.lines) <= mostLines:
		return []drawing{f.columns(load, m)}
	case len(f.run.Plan.Steps)*len(f.run.Plan.InGuests()) <= mostBars && len(f.shape.axes) < 3:
		return []drawing{f.bars(load, m)}
	}
	return f.matrices(load, m)
}

const aboutRates = "Medians over repetitions, with the interval that holds the true one with 95 %."

// columns stand along the axis; each is the sum of its tiles.
func (f *facts) columns(load string, m measure) drawing {
	c := plot.Columns{
		Title: "Throughput of " + plain(load), Along: plain(f.shape.along), Axis: plot.Axis{Label: m.label, Format: tick}, Part: "tile",
		About: aboutRates,
	}
	if f.shape.along == "guests" {
		c.Part = "guest"
	}
	var values []float64
	for _, l := range f.lines {
		c.Kinds = append(c.Kinds, plot.Kind{Name: l.name, Look: l.look})
		for _, step := range l.steps {
			values = append(values, f.shape.at(step))
		}
	}
	slices.Sort(values)
	stacked := false
	for _, x := range slices.Compact(values) {
		g := plot.Group{Name: tick(x)}
		for _, l := range f.lines {
			bar := plot.Bar{}
			if i := slices.IndexFunc(l.steps, func(s record.Step) bool { return f.shape.at(s) == x }); i >= 0 {
				bar = f.bar(f.find(l.steps[i].Name, l.arm, load, m.op), m)
			} else {
				bar.Value = math.NaN() // not of the plan
			}
			stacked = stacked || len(bar.Parts) > 1
			g.Bars = append(g.Bars, bar)
		}
		c.Groups = append(c.Groups, g)
	}
	if stacked {
		c.About += fmt.Sprintf(" Each shade is what one %s adds. An open load adds what it was offered: how fair the host is, the table of tiles tells.", c.Part)
	}
	return drawing{c.Title, c.About, func(id string) template.HTML { c.ID = id; return c.SVG() }}
}

// bars lie, one for each arm's each step; of one step, one for each arm.
func (f *facts) bars(load string, m measure) drawing {
	b := plot.Bars{
		Title: "Throughput of " + plain(load), Axis: plot.Axis{Label: m.label, Format: tick},
		About: aboutRates + " A bar is cut where one tile's part ends and the next one's begins.",
	}
	arms, steps := f.run.Plan.InGuests(), f.run.Plan.Steps
	if len(steps) == 1 {
		b.Kinds = []plot.Kind{{Look: plot.Blue}}
		for _, arm := range arms {
			b.Groups = append(b.Groups, plot.Group{Name: plain(arm.Name), Bars: []plot.Bar{f.bar(f.find(steps[0].Name, arm.Name, load, m.op), m)}})
		}
	} else {
		for i, arm := range arms {
			k := plot.Kind{Name: plain(arm.Name), Look: look(i)}
			if len(arms) == 1 {
				k.Name = ""
			}
			b.Kinds = append(b.Kinds, k)
		}
		for _, step := range steps {
			g := plot.Group{Name: plain(step.Name)}
			for _, arm := range arms {
				g.Bars = append(g.Bars, f.bar(f.find(step.Name, arm.Name, load, m.op), m))
			}
			b.Groups = append(b.Groups, g)
		}
	}
	return drawing{b.Title, b.About, func(id string) template.HTML { b.ID = id; return b.SVG() }}
}

func (f *facts) bar(w *flow, m measure) plot.Bar {
	if w == nil {
		return plot.Bar{None: "not measured"}
	}
	each := m.each(w)
	bar := plot.Bar{Value: each * w.rate.Value, Note: number(each * w.rate.Value)}
	if w.rate.Low < w.rate.High {
		bar.Low, bar.High = each*w.rate.Low, each*w.rate.High
	}
	sum := 0.0
	for _, tile := range slices.SortedFunc(maps.Keys(w.tiles), byNumber) {
		bar.Parts = append(bar.Parts, stats.Median(w.tiles[tile]))
		sum += bar.Parts[len(bar.Parts)-1]
	}
	if !(sum > 0) {
		bar.Parts = nil
	}
	for i := range bar.Parts { // medians do not add up to that of the sum
		bar.Parts[i] *= bar.Value / sum
	}
	return bar
}

// responses draw the mean and the 95th percentile along the axis.
func (f *facts) responses(load string) (all []drawing) {
	if len(f.lines) == 0 || len(f.lines) > mostLines {
		return nil
	}
	kinds := []struct {
		name, title string
		of          func(*flow) float64
	}{
		{"mean", "Mean response", func(w *flow) float64 { return w.times.Mean() * micro }},
		{"95 % are below", "95th percentile of the response", func(w *flow) float64 { return quantile(w.times, w.sum.errors, 95) }},
	}
	blank := func(what string) plot.Lines {
		l := f.along(what+" of "+plain(load)+" by "+plain(f.shape.along), plot.Axis{Label: "response", Scale: plot.Log, Format: tickSeconds})
		l.About = "Of merged histograms of all repetitions, from when an operation was meant to begin, against the second that people are ready to wait. A percentile that lies among operations that failed has no point."
		l.Marks = []plot.Mark{{At: patience, Name: "1 s"}}
		return l
	}
	if len(f.lines) == 1 { // both fit into one picture
		both := blank("Response")
		for i, k := range kinds {
			both.Series = append(both.Series, plot.Series{Name: k.name, Look: look(i), Points: f.points(f.lines[0], load, k.of)})
		}
		if len(both.Series[0].Points) > 1 {
			all = append(all, ofLines(both))
		}
		return all
	}
	for _, k := range kinds {
		one, most := blank(k.title), 0
		for _, l := range f.lines {
			s := plot.Series{Name: l.name, Look: l.look, Points: f.points(l, load, k.of)}
			one.Series, most = append(one.Series, s), max(most, len(s.Points))
		}
		if most > 1 {
			all = append(all, ofLines(one))
		}
	}
	return all
}

// along begins a picture along the axis.
func (f *facts) along(title string, y plot.Axis) plot.Lines {
	x := plot.Axis{Label: plain(f.shape.along), Format: tick}
	for _, l := range f.lines {
		for _, step := range l.steps {
			x.Ticks = append(x.Ticks, f.shape.at(step))
		}
	}
	slices.Sort(x.Ticks)
	x.Ticks = slices.Compact(x.Ticks)
	return plot.Lines{Title: title, X: x, Y: y}
}

func (f *facts) points(l line, load string, of func(*flow) float64) (points []plot.Point) {
	for _, step := range l.steps {
		if w := f.find(step.Name, l.arm, load, all); w != nil && w.times != nil {
			points = append(points, plot.Point{X: f.shape.at(step), Y: of(w)})
		}
	}
	return points
}

// beside draws every arm's throughput as times of the first one's, along the axis.
func (f *facts) beside(load string) (drawing, bool) {
	arms := f.run.Plan.InGuests()
	if len(arms) < 2 || len(f.lines) == 0 || len(f.lines) > mostLines {
		return drawing{}, false
	}
	m, first := f.measure(load), arms[0].Name
	l := f.along(fmt.Sprintf("Throughput of %s: times of %s", plain(load), plain(first)), plot.Axis{Label: "times of " + plain(first), Format: tick})
	l.About = "Quotients of medians, with the interval that holds the true one with 95 %. What lies on the line is the same."
	l.Marks = []plot.Mark{{At: 1, Name: plain(first)}}
	most := 0
	for _, line := range f.lines {
		if line.arm == first {
			continue
		}
		s := plot.Series{Name: line.name, Look: line.look}
		for _, step := range line.steps {
			w, base := f.find(step.Name, line.arm, load, m.op), f.find(step.Name, first, load, m.op)
			if w == nil || base == nil || !(base.rate.Value > 0) {
				continue
			}
			r := stats.MedianRatio(w.rates, base.rates)
			p := plot.Point{X: f.shape.at(step), Y: r.Value}
			if r.Low < r.High {
				p.Low, p.High = r.Low, r.High
			}
			s.Points = append(s.Points, p)
		}
		l.Series, most = append(l.Series, s), max(most, len(s.Points))
	}
	return ofLines(l), most > 1
}

// together draws how much of so many times one tile's rate the tiles do.
func (f *facts) together() (drawing, bool) {
	if len(f.lines)*len(f.ops) > mostLines {
		return drawing{}, false
	}
	l := f.along("Linear: many tiles beside one", plot.Axis{Label: "of linear", Format: percent})
	l.About = "100 % is as if each were alone. Of an open load it is what was served of what was offered, by the same of one tile; of a closed one, which has no schedule, what all tiles do by so many times what one does."
	l.Marks = []plot.Mark{{At: 1, Name: "linear"}}
	most := 0
	for _, load := range f.loadNames() {
		m := f.measure(load)
		for _, line := range f.lines {
			s := plot.Series{Name: strings.Trim(plain(load)+", "+line.name, ", "), Look: look(len(l.Series))}
			for _, step := range line.steps {
				w := f.find(step.Name, line.arm, load, m.op)
				switch {
				case w == nil:
				case len(w.tiles) == 1 && f.alone(line, load, m.op) == w:
					s.Points = append(s.Points, plot.Point{X: f.shape.at(step), Y: 1})
				case !math.IsNaN(f.linear(w)):
					s.Points = append(s.Points, plot.Point{X: f.shape.at(step), Y: f.linear(w)})
				}
			}
			l.Series, most = append(l.Series, s), max(most, len(s.Points))
		}
	}
	return ofLines(l), most > 1
}

// alone is the first flow of one tile in a line.
func (f *facts) alone(l line, load, op string) *flow {
	for _, step := range l.steps {
		if w := f.find(step.Name, l.arm, load, op); w != nil && len(w.tiles) == 1 {
			return w
		}
	}
	return nil
}
