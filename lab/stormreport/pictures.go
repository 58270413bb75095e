package stormreport

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/stats"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// look gives each target one look in all pictures: the bare command line is gray.
func (f *facts) look(target string) plot.Look {
	for i, t := range f.daemons() {
		if t.Name == target {
			return []plot.Look{plot.Blue, plot.Orange, plot.Teal, plot.Purple, plot.Brown}[min(i, 4)]
		}
	}
	return plot.Gray
}

// curve makes a line of values over numbers of guests.
func curve(name string, look plot.Look, sizes []int, at func(size int) (stats.Ratio, bool)) plot.Series {
	s := plot.Series{Name: name, Look: look}
	for _, n := range sizes {
		if r, ok := at(n); ok {
			p := plot.Point{X: float64(n), Y: r.Value}
			if !math.IsNaN(r.Low) && r.Low != r.High {
				p.Low, p.High = r.Low, r.High
			}
			s.Points = append(s.Points, p)
		}
	}
	return s
}

// guests is an axis of the numbers of guests that series have.
func guests(series []plot.Series) plot.Axis {
	var ticks []float64
	for _, s := range series {
		for _, p := range s.Points {
			ticks = append(ticks, p.X)
		}
	}
	slices.Sort(ticks)
	a := plot.Axis{Label: "guests", Scale: plot.Log, Ticks: slices.Compact(ticks), Format: count}
	if first, last := a.Ticks[0], a.Ticks[len(a.Ticks)-1]; len(a.Ticks) > 2 && first > 1 && last < 20*first {
		a.Scale = plot.Linear
	}
	return a
}

// picture is one drawing with its words; a picture of nothing is left out.
type picture struct {
	title, about string
	draw         func(id, title, about string) template.HTML
	table        lab.Table // the same in numbers
}

// ratios draws a metric of the storm of starts as times of the bare command line.
func (f *facts) ratios(m storm.Metric, disks int, limits []plot.Mark) (picture, bool) {
	like := place{scenario: storm.Start, disks: disks, metric: m}
	var all []plot.Series
	for _, t := range f.daemons() {
		s := curve(t.Name, f.look(t.Name), f.sizes(t.Name, like), func(n int) (stats.Ratio, bool) {
			p := like
			p.guests = n
			return f.timesDirect(t.Name, p)
		})
		if len(s.Points) > 0 {
			all = append(all, s)
		}
	}
	with := "no disk"
	if disks > 0 {
		with = fmt.Sprintf("%d disks each", disks)
	}
	return lines(fmt.Sprintf("%s: times of the bare command line, guests with %s", sentence(m), with),
		"Each point is the median over repetitions of the daemon's time by that of the same command lines in the same repetition; the band is its 95 % interval. 1× is no cost at all.",
		all, plot.Axis{Label: "times of the bare command line", Scale: plot.Log, From: 0.9, Format: timesTick}, limits, times)
}

// whole draws the time of a whole storm.
func (f *facts) whole(m storm.Metric, disks int) (picture, bool) {
	like := place{scenario: storm.Start, disks: disks, metric: m}
	with := "no disk"
	if disks > 0 {
		with = fmt.Sprintf("%d disks each", disks)
	}
	return lines(fmt.Sprintf("%s: time until all are done, guests with %s", sentence(m), with),
		"Both axes are logarithmic: a straight line that rises one decade a decade costs each guest the same.",
		f.levels(like, f.lineTargets(), 1), plot.Axis{Label: "time", Scale: plot.Log, Format: tick}, nil, duration)
}

// levels are curves of medians over repetitions.
func (f *facts) levels(like place, targets []string, unit float64) []plot.Series {
	var all []plot.Series
	for _, t := range targets {
		s := curve(t, f.look(t), f.sizes(t, like), func(n int) (stats.Ratio, bool) {
			p := like
			p.guests = n
			values := f.samples(t, p)
			r := level(values)
			return stats.Ratio{Value: r.Value / unit, Low: r.Low / unit, High: r.High / unit}, len(values) > 0
		})
		if len(s.Points) > 0 {
			all = append(all, s)
		}
	}
	return all
}

// lineTargets are the daemons and one bare command line, the subject's.
func (f *facts) lineTargets() []string {
	var all []string
	if direct := f.direct(f.subject.Name); direct != "" {
		all = append(all, direct)
	}
	for _, t := range f.daemons() {
		all = append(all, t.Name)
	}
	return all
}

func sentence(m storm.Metric) string {
	return strings.ToUpper(string(m)[:1]) + string(m)[1:]
}

// lines makes a picture of curves over guests, and the table of the same.
func lines(title, about string, series []plot.Series, y plot.Axis, marks []plot.Mark, write func(float64) string) (picture, bool) {
	if len(series) == 0 {
		return picture{}, false
	}
	x := guests(series)
	p := picture{title: title, about: about, draw: func(id, title, about string) template.HTML {
		return plot.Lines{ID: id, Title: title, About: about, X: x, Y: y, Series: series, Marks: marks}.SVG()
	}}
	p.table = lab.Table{Title: title, Head: []string{"guests"}}
	for _, s := range series {
		p.table.Head = append(p.table.Head, s.Name)
	}
	for _, n := range x.Ticks {
		row := []string{count(n)}
		for _, s := range series {
			text := ""
			for _, q := range s.Points {
				if q.X == n {
					r := stats.Ratio{Value: q.Y, Low: q.Low, High: q.High}
					text = within(r, write)
				}
			}
			row = append(row, text)
		}
		p.table.Rows = append(p.table.Rows, row)
	}
	return p, true
}

// percentiles draws how long single calls took, up to the longest.
func (f *facts) percentiles(scenario storm.Scenario, m storm.Metric, kind storm.Case, title string) (picture, bool) {
	like := place{scenario: scenario, metric: m, kind: kind}
	sizes := f.sizes(f.subject.Name, like)
	if len(sizes) == 0 {
		return picture{}, false
	}
	like.guests = sizes[len(sizes)-1]
	about := "At p99 is the wait that 99 of 100 calls do not exceed. Each further nine takes as much room as the one before."
	title = named(title, like.guests)
	all := plot.Lines{
		X: plot.Axis{Label: "percentile of calls", Scale: plot.Nines, Format: percentile},
		Y: plot.Axis{Label: "wait of one caller", Scale: plot.Log, Format: tick},
	}
	t := lab.Table{Title: title, Head: []string{"", "calls", "p50", "p90", "p99", "p99.9", "longest"}}
	for _, target := range f.lineTargets() {
		h := f.histogram(target, like)
		if h == nil {
			continue
		}
		s := plot.Series{Name: target, Look: f.look(target), Bare: true}
		// Beyond one in as many calls as there are, there is nothing to be known.
		most := 1 - 1/float64(max(h.TotalCount(), 2))
		for nines := 0.0; nines <= -math.Log10(1-most)+1e-9; nines += 0.05 {
			q := 1 - math.Pow(10, -nines)
			s.Points = append(s.Points, plot.Point{X: q, Y: seconds(h, q)})
		}
		all.Series = append(all.Series, s)
		row := []string{target, fmt.Sprint(h.TotalCount())}
		for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
			row = append(row, reached(h, q))
		}
		t.Rows = append(t.Rows, append(row, duration(float64(h.Max())/1e6)))
	}
	return picture{title, about, func(id, title, about string) template.HTML {
		all.ID, all.Title, all.About = id, title, about
		return all.SVG()
	}, t}, len(all.Series) > 0
}

// stuck is the table of stirPicture, with its title.
func (f *facts) stuck() lab.Table {
	p, _ := f.stirPicture()
	p.table.Title = p.title
	return p.table
}

// stirPicture draws calls on healthy guests, idle and wedged.
func (f *facts) stirPicture() (picture, bool) {
	metrics, guests, disks := f.stirs("")
	if len(metrics) == 0 {
		return picture{}, false
	}
	all := plot.Bars{Axis: plot.Axis{Label: "p99 of calls, logarithmic", Scale: plot.Log, Format: tick}}
	t := lab.Table{Head: []string{"", "daemon", "idle, p99", "wedged, p99", "longest", "times p99 idle (95 % interval)"}}
	for _, d := range f.daemons() {
		all.Kinds = append(all.Kinds, plot.Kind{Name: d.Name + ", idle", Look: f.look(d.Name), Pale: true},
			plot.Kind{Name: d.Name + ", callers hang", Look: f.look(d.Name)})
	}
	for _, m := range metrics {
		g := plot.Group{Name: string(m)}
		for _, d := range f.daemons() {
			s := f.stir(d.Name, m, guests, disks)
			g.Bars = append(g.Bars, bar(s.idle, 0), bar(s.wedged, s.blocked))
			row := []string{string(m), d.Name, within(s.idle, duration), within(s.wedged, duration), duration(s.longest), within(s.ratio, times)}
			if s.blocked > 0 {
				row[3], row[4], row[5] = "blocked after "+waited(s.blocked), "", ""
			}
			t.Rows = append(t.Rows, row)
		}
		all.Groups = append(all.Groups, g)
	}
	return picture{
		fmt.Sprintf("Calls on healthy guests while a tenth of %d is stopped and callers hang on them", guests),
		"Pale: nothing is stopped. Full: the same calls while 25 callers ask something of guests whose QEMU is stopped. An arrow is a call that had not ended when the lab's patience did. Of fewer than 100 calls in a repetition p99 is the longest. Each kind of call is made over one connection, at most once in 20 ms, so that a call that takes longer puts off the next: the longest tells what p99 leaves out then.",
		func(id, title, about string) template.HTML {
			all.ID, all.Title, all.About = id, title, about
			return all.SVG()
		}, t,
	}, true
}

func bar(r stats.Ratio, blocked float64) plot.Bar {
	switch {
	case blocked > 0:
		return plot.Bar{Value: blocked, Endless: true, Note: "blocked after " + waited(blocked)}
	case math.IsNaN(r.Value):
		return plot.Bar{None: "not measured"}
	}
	b := plot.Bar{Value: r.Value, Note: duration(r.Value)}
	if r.Low != r.High {
		b.Low, b.High = r.Low, r.High
	}
	return b
}

// statsPicture draws the statistics of all guests, idle and with some stopped.
func (f *facts) statsPicture() (picture, bool) {
	like := place{scenario: storm.Stats, metric: storm.MetricStats, kind: storm.Idle}
	sizes := f.sizes(f.subject.Name, like)
	if len(sizes) == 0 {
		return picture{}, false
	}
	like.guests = sizes[len(sizes)-1]
	all := plot.Bars{
		Axis:  plot.Axis{Label: "p50 of calls, logarithmic", Scale: plot.Log, Format: tick},
		Marks: []plot.Mark{{At: 0.005, Name: "promise: 5 ms"}},
	}
	t := lab.Table{Head: []string{"", "daemon", "p50", "p99"}}
	for _, d := range f.daemons() {
		all.Kinds = append(all.Kinds, plot.Kind{Name: d.Name, Look: f.look(d.Name)})
	}
	for _, c := range []struct {
		kind storm.Case
		name string
	}{{storm.Idle, "all well"}, {storm.NoWait, "all well, NOWAIT"}, {storm.Stopped, "a tenth stopped"}, {storm.StoppedNoWait, "a tenth stopped, NOWAIT"}} {
		like.kind = c.kind
		g := plot.Group{Name: c.name}
		for _, d := range f.daemons() {
			blocked := f.blocked(d.Name, like)
			g.Bars = append(g.Bars, bar(level(f.calls(d.Name, like, 0.5)), blocked))
			row := []string{c.name, d.Name, duration(middle(f.calls(d.Name, like, 0.5))), duration(middle(f.calls(d.Name, like, 0.99)))}
			if blocked > 0 {
				row[2], row[3] = "blocked after "+waited(blocked), ""
			}
			t.Rows = append(t.Rows, row)
		}
		all.Groups = append(all.Groups, g)
	}
	return picture{
		fmt.Sprintf("Statistics of all %d guests in one call", like.guests), "An arrow is a call that had not ended when the lab's patience did.",
		func(id, title, about string) template.HTML {
			all.ID, all.Title, all.About = id, title, about
			return all.SVG()
		}, t,
	}, true
}

// adoptPicture draws how long a killed daemon is missed.
func (f *facts) adoptPicture() (picture, bool) {
	like := place{scenario: storm.Adopt, metric: storm.MetricAdopt}
	most := 0
	for _, d := range f.daemons() {
		if sizes := f.sizes(d.Name, like); len(sizes) > 0 {
			most = max(most, sizes[len(sizes)-1])
		}
	}
	if most == 0 {
		return picture{}, false
	}
	like.guests = most
	all := plot.Bars{
		Axis: plot.Axis{Label: "time since the old process was gone", Format: tick}, Kinds: []plot.Kind{},
		Marks: []plot.Mark{{At: 0.25, Name: "promise: 0.25 s"}},
	}
	t := lab.Table{Head: []string{"", "daemon", "time (95 % interval)"}}
	for _, d := range f.daemons() {
		all.Kinds = append(all.Kinds, plot.Kind{Name: d.Name, Look: f.look(d.Name)})
	}
	for _, c := range []struct {
		metric storm.Metric
		name   string
	}{{storm.MetricReady, "the daemon answers"}, {storm.MetricAnswer, "it tells of all guests"}, {storm.MetricAdopt, "all guests answer"}} {
		like.metric = c.metric
		g := plot.Group{Name: c.name}
		for _, d := range f.daemons() {
			r := level(f.samples(d.Name, like))
			g.Bars = append(g.Bars, bar(r, f.blocked(d.Name, like)))
			t.Rows = append(t.Rows, []string{c.name, d.Name, within(r, duration)})
		}
		all.Groups = append(all.Groups, g)
	}
	return picture{
		fmt.Sprintf("Killed with %d guests: until the next process answers", most), "From the end of the old process.",
		func(id, title, about string) template.HTML {
			all.ID, all.Title, all.About = id, title, about
			return all.SVG()
		}, t,
	}, true
}

// own draws what the daemon takes for itself, by its guests: from the scenario
// that has the most sizes.
func (f *facts) own(m storm.Metric, title, label string, unit float64, write func(float64) string, limit bool) (picture, bool) {
	like := place{scenario: storm.Start, metric: m}
	if more := (place{scenario: storm.Thousand, metric: m}); len(f.sizes(f.subject.Name, more)) > 0 {
		like = more
	}
	var names []string
	for _, d := range f.daemons() {
		names = append(names, d.Name)
	}
	series := f.levels(like, names, unit)
	if len(series) == 0 {
		return picture{}, false
	}
	about := "Of the daemon's process alone, while its guests are there and paused."
	if limit {
		about += " The gray line is the promise: 64 MiB and 64 KiB a guest."
		s := plot.Series{Name: "promise", Look: plot.Gray, Bare: true}
		for _, x := range guests(series).Ticks {
			s.Points = append(s.Points, plot.Point{X: x, Y: (budget + budgetEach*x) / unit})
		}
		series = append(series, s)
	}
	return lines(title, about, series, plot.Axis{Label: label, Format: write}, nil, write)
}

// each draws what one more guest costs.
func (f *facts) each(m storm.Metric) (picture, bool) {
	like := place{scenario: storm.Thousand, metric: m + "." + storm.MetricEach}
	series := f.levels(like, f.lineTargets(), 1)
	about := "A level line is a cost that does not depend on how many guests there are already."
	var powers []string
	for _, s := range series {
		if r, _ := f.power(s.Name, like); !math.IsNaN(r.Value) {
			powers = append(powers, s.Name+" "+within(r, digits))
		}
	}
	if len(powers) > 0 {
		about += " The cost of all of them grows with this power of their number: " + strings.Join(powers, ", ") + "."
	}
	return lines(fmt.Sprintf("%s: cost of one more guest", sentence(m)), about, series,
		plot.Axis{Label: "time for each guest", Format: tick}, nil, duration)
}
