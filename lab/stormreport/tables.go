package stormreport

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/stats"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// promised is the table of promises.
func (f *facts) promised(outcomes []outcome) lab.Table {
	t := lab.Table{Title: "What was promised", Head: []string{"", "direct"}}
	for _, other := range f.others {
		t.Head = append(t.Head, other.Name)
	}
	t.Head = append(t.Head, f.subject.Name, "held against it (95 % interval)", "promise", "")
	for _, o := range outcomes {
		row := []string{o.What, o.Direct.Text}
		for _, c := range o.Others {
			row = append(row, c.Text)
		}
		t.Rows = append(t.Rows, append(row, o.Subject.Text, o.Ratio, o.Said, string(o.Standing)))
	}
	return t
}

// beside is one comparison of another daemon with the subject.
type beside struct {
	place place
	other storm.Target
	stats.Comparison
	theirs, mine stats.Ratio // in the repetitions that both have, as the comparison
	corrected    float64
	blocked      float64
	repeats      int
}

// besides compares the daemons at the largest size of each kind of storm.
func (f *facts) besides() []beside {
	var all []beside
	for _, p := range f.largest() {
		for _, other := range f.others {
			b := beside{place: p, other: other, blocked: f.blocked(other.Name, p)}
			mine, theirs := f.samples(f.subject.Name, p), f.samples(other.Name, p)
			x, y := pairs(theirs, mine)
			if b.repeats = len(x); len(x) == 0 && b.blocked == 0 {
				continue
			}
			b.Comparison = compare(theirs, mine)
			b.theirs, b.mine = stats.MedianRatio(x, []float64{1}), stats.MedianRatio(y, []float64{1})
			all = append(all, b)
		}
	}
	var p []float64
	for _, b := range all {
		p = append(p, b.P)
	}
	for i, corrected := range stats.Holm(p) {
		all[i].corrected = corrected
	}
	return all
}

// largest are the places of whole storms of the subject, each at its largest
// size, in the order of the scenarios.
func (f *facts) largest() []place {
	var all []place
	for _, r := range f.runs {
		for _, s := range r.Samples {
			if s.Target != f.subject.Name || s.Unit != storm.Seconds || strings.Contains(string(s.Metric), ".") || s.Scenario == storm.Thousand {
				continue
			}
			p := at(s.Cell, s.Metric)
			sizes := f.sizes(f.subject.Name, p)
			if p.guests == sizes[len(sizes)-1] && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.disks, b.disks))
	})
	return all
}

// order is that of scenarios in tables.
var order = []storm.Scenario{storm.Start, storm.Define, storm.Stats, storm.Wedge, storm.Adopt, storm.Save, storm.Connect, storm.Same, storm.Thousand}

func (p place) rank() int { return slices.Index(order, p.scenario) }

func (p place) String() string {
	text := string(p.metric)
	own := p.metric == storm.Metric(p.scenario)
	switch p.scenario {
	case storm.Start:
		own = own || p.metric == storm.MetricDestroy
	case storm.Define:
		own = own || p.metric == storm.MetricUndefine
	}
	if !own {
		text = fmt.Sprintf("%s (%s)", p.metric, p.scenario)
	}
	text += ", " + plural(p.guests, "guest", "guests")
	if p.disks > 0 {
		text += fmt.Sprintf(", %d disks", p.disks)
	}
	if p.kind != "" {
		text += ", " + string(p.kind)
	}
	return text
}

func (f *facts) comparison() lab.Table {
	t := lab.Table{
		Title: "The same storm, beside " + f.subject.Name,
		Head:  []string{"", "daemon", "its time", f.subject.Name, "times that (95 % interval)", "p, corrected", "finding"},
	}
	noise, all := f.noise(), f.besides()
	for _, b := range all {
		row := []string{b.place.String(), b.other.Name}
		if b.blocked > 0 {
			mine := level(f.samples(f.subject.Name, b.place))
			t.Rows = append(t.Rows, append(row, "blocked after "+waited(b.blocked), duration(mine.Value), "", "", "blocked"))
			continue
		}
		row = append(row, duration(b.theirs.Value), duration(b.mine.Value), within(b.Ratio, times))
		t.Rows = append(t.Rows, append(row, chance(b.corrected), b.finding(noise, len(all))))
	}
	return t
}

func chance(p float64) string {
	if p < 0.001 {
		return "< 0.001"
	}
	return fmt.Sprintf("%.3f", p)
}

// finding is the double threshold in a word, for a line of a table of so many.
func (b beside) finding(noise float64, lines int) string {
	if leastChance(b.repeats)*float64(lines) >= stats.Surely {
		return "too few repetitions to test"
	}
	c := b.Comparison
	c.P = b.corrected
	// max is not a number where the noise is not known, and then nothing is found.
	switch c.Find(max(stats.Matters, noise)) {
	case stats.More:
		return "slower"
	case stats.Less:
		return "faster"
	case stats.Same:
	}
	return "none shown"
}

// latencies lists percentiles of single calls of all daemons.
func (f *facts) latencies() lab.Table {
	t := lab.Table{
		Title: "Wait of one caller",
		Head:  []string{"", "target", "calls", "p50", "p99", "p99.9", "longest"},
	}
	for _, p := range f.callPlaces() {
		for _, target := range f.targets() {
			h := f.histogram(target, p)
			if h == nil {
				continue
			}
			longest := duration(float64(h.Max()) / 1e6)
			if after := f.blocked(target, p); after > 0 {
				longest = "blocked after " + waited(after)
			}
			t.Rows = append(t.Rows, []string{
				p.String(), target, fmt.Sprint(h.TotalCount()),
				reached(h, 0.5), reached(h, 0.99), reached(h, 0.999), longest,
			})
		}
	}
	return t
}

// reached is a percentile, if there are so many calls that one lies beyond it.
func reached(h *hdrhistogram.Histogram, quantile float64) string {
	if float64(h.TotalCount())*(1-quantile) < 1-1e-9 {
		return "–"
	}
	return duration(seconds(h, quantile))
}

// targets are the names of all, daemons first.
func (f *facts) targets() []string {
	var all []string
	for _, t := range f.daemons() {
		all = append(all, t.Name)
	}
	for _, r := range f.runs {
		for _, t := range r.Targets {
			if !slices.Contains(all, t.Name) {
				all = append(all, t.Name)
			}
		}
	}
	return all
}

// callPlaces are the places where single calls were timed, each at its largest
// size only.
func (f *facts) callPlaces() []place {
	var all []place
	for _, r := range f.runs {
		for _, c := range r.Calls {
			p := at(c.Cell, c.Metric)
			if p.scenario == storm.Wedge || p.scenario == storm.Stats {
				continue // they have tables of their own
			}
			i := slices.IndexFunc(all, func(q place) bool { q.guests = p.guests; return q == p })
			if i < 0 {
				all = append(all, p)
			} else {
				all[i].guests = max(all[i].guests, p.guests)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.disks, b.disks), cmp.Compare(a.metric, b.metric), cmp.Compare(a.kind, b.kind))
	})
	return all
}

// stopped says what became of calls about the stopped guests themselves: those of
// the callers that hang, and the destroy of one at the end.
func (f *facts) stopped() lab.Table {
	t := lab.Table{Title: "Calls on the stopped guests", Head: []string{"", "daemon", "calls", "p50", "longest", "end"}}
	for _, m := range []storm.Metric{storm.MetricHang, storm.MetricRelease} {
		for _, d := range f.daemons() {
			for _, o := range []storm.Outcome{storm.Done, storm.TimedOut, storm.Refused, storm.Cut} {
				h := histogram.New()
				text := ""
				for _, r := range f.runs {
					for i := range r.Calls {
						c := &r.Calls[i]
						if c.Scenario != storm.Wedge || c.Target != d.Name || c.Metric != m || c.Outcome != o {
							continue
						}
						if times, err := c.Times(); err == nil {
							h.Merge(times)
						}
						text = cmp.Or(text, c.Text)
					}
				}
				if h.TotalCount() > 0 {
					t.Rows = append(t.Rows, []string{
						string(m), d.Name, fmt.Sprint(h.TotalCount()),
						duration(seconds(h, 0.5)), duration(float64(h.Max()) / 1e6), ended(o, text),
					})
				}
			}
		}
	}
	return t
}

// ended says in words how calls ended.
func ended(o storm.Outcome, text string) string {
	how := map[storm.Outcome]string{storm.Done: "answered", storm.TimedOut: "timed out", storm.Refused: "refused", storm.Cut: "no answer before the lab let go"}[o]
	if text != "" {
		how += ": " + text
	}
	return how
}

// missing says what was not measured or did not go well, and why.
func (f *facts) missing() lab.Table {
	t := lab.Table{Title: "What was not measured, or did not end well", Head: []string{"", "target", "times", "why"}}
	var seen [][]string
	add := func(what, target, why string, n int) {
		for i, row := range seen {
			if row[0] == what && row[1] == target && row[2] == why {
				var before int
				if _, err := fmt.Sscan(t.Rows[i][2], &before); err == nil {
					n += before
				}
				t.Rows[i][2] = fmt.Sprint(n)
				return
			}
		}
		seen = append(seen, []string{what, target, why})
		t.Rows = append(t.Rows, []string{what, target, fmt.Sprint(n), why})
	}
	for _, r := range f.runs {
		for _, s := range r.Skipped {
			add(at(s.Cell, storm.Metric(s.Scenario)).String(), s.Target, s.Reason, 1)
		}
		for _, b := range r.Blocked {
			add(at(b.Cell, b.Metric).String(), b.Target, fmt.Sprintf("still blocked after %.0f s: %s", b.After, b.Text), 1)
		}
		for _, c := range r.Calls {
			if c.Outcome != storm.Refused && c.Outcome != storm.TimedOut || c.Metric == storm.MetricHang {
				continue
			}
			n := len(c.Took)
			if h, err := c.Times(); err == nil {
				n = int(h.TotalCount())
			}
			add(at(c.Cell, c.Metric).String(), c.Target, fmt.Sprintf("%s: %s", c.Outcome, cmp.Or(c.Text, "no reason given")), n)
		}
	}
	return t
}
