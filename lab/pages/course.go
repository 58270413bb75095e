package pages

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/record"
)

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
func (f *facts) course(load, step string) (drawing, bool) {
	m := f.measure(load)
	l := plot.Lines{
		Title: "Course of " + plain(load) + f.at(step),
		About: "The first repetition, second by second, all tiles together: what ended in each, whenever it was meant to begin. The end of the warm-up and what was done to guests are marked.",
		X:     plot.Axis{Label: "seconds from the start of the load", Format: tick}, Y: plot.Axis{Label: "done in a second", Format: tick},
	}
	var marks []done
	times := 1.0
	if m.op == all && m.times > 1 {
		times, l.Y.Label = m.times, m.label
	}
	for i, arm := range f.run.Plan.InGuests() {
		turn := record.Turn{Arm: arm.Name, Repetition: 1, Step: step}
		points, began := f.perSecond(turn, load)
		if len(points) == 0 {
			continue
		}
		for i := range points {
			points[i].Y *= times
		}
		s := plot.Series{Look: look(i), Points: points, Bare: true}
		if len(f.run.Plan.InGuests()) > 1 {
			s.Name = plain(arm.Name)
		}
		l.Series = append(l.Series, s)
		marks = append(marks, f.marks(turn, began, points[len(points)-1].X)...)
	}
	l.Events = append(f.firsts(step, l.Series), gathered(marks, len(l.Series))...)
	return ofLines(l), len(l.Series) > 0
}

// firsts mark where the first window begins in the lines that are drawn: once for all
// whose warm-up was as long.
func (f *facts) firsts(step string, drawn []plot.Series) (all []plot.Mark) {
	arms := map[float64][]string{}
	for _, arm := range f.run.Plan.Arms {
		name := plain(arm.Name)
		if len(f.run.Plan.Arms) > 1 && !slices.ContainsFunc(drawn, func(s plot.Series) bool { return s.Name == name }) {
			continue
		}
		at := f.warmup(record.Turn{Arm: arm.Name, Repetition: 1, Step: step})
		arms[at] = append(arms[at], name)
	}
	for _, at := range slices.Sorted(maps.Keys(arms)) {
		words := "measured"
		if len(arms) > 1 {
			words += ", " + strings.Join(arms[at], ", ")
		}
		if at > 0 {
			all = append(all, plot.Mark{At: at, Name: words})
		}
	}
	return all
}

// at names a step, if there is more than one.
func (f *facts) at(step string) string {
	if len(f.run.Plan.Steps) == 1 {
		return ""
	}
	return " at " + plain(step)
}

// done is what was done to a guest of an arm, in seconds from a moment.
type done struct {
	at        float64
	what, arm string
}

// marks are what was done to guests in a turn.
func (f *facts) marks(turn record.Turn, began time.Time, until float64) (all []done) {
	for _, e := range f.events(record.Change, "") {
		if at := e.Time.Sub(began).Seconds(); e.Turn == turn && e.Guest != "" && at >= 0 && at <= until {
			all = append(all, done{at, plain(strings.TrimSpace(e.Text)), plain(e.Arm)})
		}
	}
	return all
}

// together is how near to each other the same thing is done in several arms, s, to be
// drawn as one.
const together = 3.0

// gathered draws what was done about the same time as one. Arms are named unless all of
// them did it.
func gathered(marks []done, arms int) (all []plot.Mark) {
	slices.SortStableFunc(marks, func(a, b done) int { return cmp.Compare(a.at, b.at) })
	for len(marks) > 0 {
		first, rest := marks[0], []done{}
		var who []string
		for _, m := range marks {
			if m.what != first.what || m.at-first.at >= together {
				rest = append(rest, m)
			} else if !slices.Contains(who, m.arm) {
				who = append(who, m.arm)
			}
		}
		name := first.what
		if len(who) < arms {
			name += ", " + strings.Join(who, ", ")
		}
		all, marks = append(all, plot.Mark{At: first.at, Name: name}), rest
	}
	return all
}
