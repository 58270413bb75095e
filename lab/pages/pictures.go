package pages

import (
	"fmt"
	"html/template"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// patience is the response that people wait for without noticing much, s: the
// line that pictures of responses have.
const patience = 1.0

// look tells arms apart; after the fifth they come again, and their names are
// left to tell.
func look(arm int) plot.Look { return plot.Blue + plot.Look(arm%5) }

// picture is one with its words.
type picture struct {
	Title, About string
	SVG          template.HTML
}

func drawn(l plot.Lines) picture { return picture{l.Title, l.About, l.SVG()} }

// pictures are those of every load.
func (f *facts) pictures() (all []picture) {
	id := func() string { return fmt.Sprintf("figure-%d", len(all)+1) }
	for _, load := range f.loadNames() {
		all = append(all, f.throughput(id(), load))
		if p, ok := f.response(id(), load); ok {
			all = append(all, p)
		}
		for _, step := range f.lively() {
			if p, ok := f.course(id(), load, step); ok {
				all = append(all, p)
			}
		}
	}
	return all
}

func (f *facts) loadNames() []string {
	seen := map[string]bool{}
	for _, w := range f.flows {
		seen[w.load] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// throughput has a bar for each arm's each step, made of its tiles.
func (f *facts) throughput(id, load string) picture {
	b := plot.Bars{
		ID: id, Title: "Throughput of " + plain(load), Axis: plot.Axis{Label: "done in a second"},
		About: "Medians over repetitions with the interval that holds the true one with 95 %. A bar is cut where one tile's part ends and the next one's begins.",
	}
	for i, arm := range f.run.Plan.Arms {
		b.Kinds = append(b.Kinds, plot.Kind{Name: plain(arm.Name), Look: look(i)})
	}
	for _, step := range f.run.Plan.Steps {
		g := plot.Group{Name: plain(step.Name)}
		for _, arm := range f.run.Plan.Arms {
			g.Bars = append(g.Bars, f.bar(f.find(step.Name, arm.Name, load, all)))
		}
		b.Groups = append(b.Groups, g)
	}
	return picture{b.Title, b.About, b.SVG()}
}

func (f *facts) bar(w *flow) plot.Bar {
	if w == nil {
		return plot.Bar{None: "not measured"}
	}
	rate := median(w.rates)
	bar := plot.Bar{Value: rate.Value, Note: number(rate.Value)}
	if rate.Low < rate.High {
		bar.Low, bar.High = rate.Low, rate.High
	}
	sum := 0.0
	for _, tile := range slices.SortedFunc(maps.Keys(w.tiles), byNumber) {
		bar.Parts = append(bar.Parts, stats.Median(w.tiles[tile]))
		sum += bar.Parts[len(bar.Parts)-1]
	}
	for i := range bar.Parts { // medians do not add up to that of the sum
		bar.Parts[i] *= rate.Value / sum
	}
	return bar
}

// response draws the 95th percentile along the tiles; where steps differ in more
// than tiles there is no such line.
func (f *facts) response(id, load string) (picture, bool) {
	l := plot.Lines{
		ID: id, Title: "Response of " + plain(load) + " by tiles",
		About: "The 95th percentile of merged histograms of all repetitions, against the second that people are ready to wait.",
		X:     plot.Axis{Label: "tiles"}, Y: plot.Axis{Label: "95th percentile", Scale: plot.Log, Format: seconds},
		Marks: []plot.Mark{{At: patience, Name: "1 s"}},
	}
	most := 0
	for i, arm := range f.run.Plan.Arms {
		s := plot.Series{Name: plain(arm.Name), Look: look(i)}
		seen := map[int]bool{}
		for _, step := range f.run.Plan.Steps {
			w := f.find(step.Name, arm.Name, load, all)
			if w == nil || w.times == nil {
				continue
			}
			tiles := len(w.tiles)
			if seen[tiles] {
				return picture{}, false
			}
			seen[tiles] = true
			s.Points = append(s.Points, plot.Point{X: float64(tiles), Y: float64(w.times.ValueAtQuantile(95)) * micro})
		}
		slices.SortFunc(s.Points, func(a, b plot.Point) int { return int(a.X - b.X) })
		most = max(most, len(s.Points))
		l.Series = append(l.Series, s)
	}
	return drawn(l), most > 1
}

// lively are the steps of which the course is drawn: those in which something was
// done to guests, and the last.
func (f *facts) lively() (steps []string) {
	for i, step := range f.run.Plan.Steps {
		if i == len(f.run.Plan.Steps)-1 || slices.ContainsFunc(f.events(record.Change, ""), func(e record.Event) bool { return e.Step == step.Name && e.Guest != "" }) {
			steps = append(steps, step.Name)
		}
	}
	return steps
}

// course draws the first repetition second by second, with what happened in it.
func (f *facts) course(id, load, step string) (picture, bool) {
	l := plot.Lines{
		ID: id, Title: fmt.Sprintf("Course of %s at %s", plain(load), plain(step)),
		About: "The first repetition, second by second, all tiles together, with the warm-up and what was done to guests.",
		X:     plot.Axis{Label: "seconds from the start of the load"}, Y: plot.Axis{Label: "done in a second"},
	}
	for i, arm := range f.run.Plan.Arms {
		turn := record.Turn{Arm: arm.Name, Repetition: 1, Step: step}
		points, began := f.seconds(turn, load)
		if len(points) == 0 {
			continue
		}
		l.Series = append(l.Series, plot.Series{Name: plain(arm.Name), Look: look(i), Points: points, Bare: true})
		for _, e := range f.events(record.Change, "") {
			if at := e.Time.Sub(began).Seconds(); e.Turn == turn && e.Guest != "" && at >= 0 && at <= points[len(points)-1].X {
				l.Events = append(l.Events, plot.Mark{At: at, Name: plain(strings.TrimSpace(e.Text + ", " + arm.Name))})
			}
		}
	}
	return drawn(l), len(l.Series) > 0
}

// seconds adds the tiles' and the operations' time lines up, second by second.
func (f *facts) seconds(turn record.Turn, load string) (points []plot.Point, began time.Time) {
	type cell struct {
		second   int
		tile, op string
	}
	var lines []record.Sample
	for _, s := range f.run.Samples {
		if s.Turn == turn && s.Metric == record.MetricSecond && s.Labels["load"] == load && counted(s.Labels["op"]) {
			lines = append(lines, s)
			if began.IsZero() || s.Time.Before(began) {
				began = s.Time
			}
		}
	}
	values := map[cell][]float64{}
	for _, s := range lines {
		at := cell{int(math.Floor(s.Time.Sub(began).Seconds())), s.Labels["tile"], s.Labels["op"]}
		values[at] = append(values[at], s.Value)
	}
	rates := map[int]float64{}
	for at, v := range values {
		sum := 0.0
		for _, one := range v {
			sum += one
		}
		rates[at.second] += sum / float64(len(v)) // two intervals may begin in one second
	}
	for _, second := range slices.Sorted(maps.Keys(rates)) {
		points = append(points, plot.Point{X: float64(second), Y: rates[second]})
	}
	return points, began
}
