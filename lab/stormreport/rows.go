package stormreport

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/lodge-kvm/lodge/lab/stats"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// standing is how a promise stands.
type standing string

const (
	met        standing = "met"
	unmet      standing = "not met"
	unclear    standing = "unclear"
	unmeasured standing = "not measured"
)

// cell is a figure of one target.
type cell struct {
	Text    string
	Blocked bool // not a figure: it had not ended
}

// outcome is a promise with what was measured.
type outcome struct {
	What     string
	Said     string // the promise
	Direct   cell
	Others   []cell // as facts.others
	Subject  cell
	Ratio    string // or what else is held against the promise
	Standing standing
	Why      string // where the standing does not speak for itself
	Elsewise bool   // measured at another size than the promise is of
}

// outcomes holds every promise against what was measured.
func (f *facts) outcomes() []outcome {
	var all []outcome
	for _, p := range promises {
		all = append(all, f.outcome(p))
	}
	return all
}

func (f *facts) outcome(p promise) outcome {
	switch p.to {
	case toIdle:
		return f.calmest(p)
	case toLine:
		return f.growth(p)
	case toNone:
		return f.threads(p)
	case toDirect, toOthers, toClock, toBudget, toCore:
	}
	o := outcome{Said: p.said(), Standing: unmeasured}
	wanted := p.place.guests
	p.place.guests = nearest(f.sizes(f.subject.Name, p.place), wanted)
	if p.place.guests == 0 {
		o.What, o.Why = named(p.what, wanted), f.whyNot(p.place.scenario)
		o.fill(f)
		return o
	}
	o.What = named(p.what, p.place.guests)
	if p.place.guests != wanted {
		o.Elsewise, o.Why = true, fmt.Sprintf("the promise is of %d guests", wanted)
	}
	write := p.write()
	o.Subject = f.figure(f.subject.Name, p, write)
	for _, t := range f.others {
		c := f.figure(t.Name, p, write)
		if r, ok := f.timesDirect(t.Name, p.place); ok && p.to == toDirect {
			c.Text += " · " + times(r.Value)
		}
		o.Others = append(o.Others, c)
	}
	if p.to == toDirect {
		o.Direct = f.figure(f.direct(f.subject.Name), p, write)
	}
	f.judge(&o, p)
	if n, why := f.lost(f.subject.Name, p); n > 0 && o.Standing == met {
		o.Standing = unclear
		o.because(fmt.Sprintf("%s gave no value: %s", plural(n, "repetition", "repetitions"), why))
	}
	o.fill(f)
	return o
}

// named puts a number into a promise's words where they have a place for it.
func named(what string, n int) string {
	if slices.Contains([]byte(what), '%') {
		return fmt.Sprintf(what, n)
	}
	return what
}

// fill completes the columns.
func (o *outcome) fill(f *facts) {
	for len(o.Others) < len(f.others) {
		o.Others = append(o.Others, cell{})
	}
}

func (p promise) write() func(float64) string {
	switch p.to {
	case toBudget:
		return mebibytes
	case toCore:
		return func(v float64) string { return digits(100*v) + " %" }
	case toDirect, toOthers, toClock, toIdle, toLine, toNone:
	}
	return duration
}

// values are what a promise is about, by repetition.
func (f *facts) values(target string, p promise) []value {
	switch p.value {
	case typical:
		return f.calls(target, p.place, 0.5)
	case tail:
		return f.calls(target, p.place, 0.99)
	case whole:
	}
	return f.samples(target, p.place)
}

func (f *facts) figure(target string, p promise, write func(float64) string) cell {
	if after := f.blocked(target, p.place); after > 0 {
		return cell{"blocked after " + waited(after), true}
	}
	all := f.values(target, p)
	if len(all) == 0 {
		return cell{}
	}
	return cell{Text: write(middle(all))}
}

// judge holds what was measured against the promise.
func (f *facts) judge(o *outcome, p promise) {
	mine := f.values(f.subject.Name, p)
	if f.blocked(f.subject.Name, p.place) > 0 {
		o.Standing, o.Why = unmet, "it had not ended when the lab's patience did"
		return
	}
	if n, text := f.failed(f.subject.Name, p.place); n > 0 {
		o.Standing, o.Why = unmet, fmt.Sprintf("%s failed: %s", plural(n, "call", "calls"), text)
		return
	}
	var beside []value
	switch p.to {
	case toDirect:
		beside = f.values(f.direct(f.subject.Name), p)
	case toOthers:
		if len(f.others) > 0 {
			beside = f.values(f.others[0].Name, p)
		}
	case toClock, toBudget, toCore, toIdle, toLine, toNone:
		r := level(mine)
		limit := p.limit
		if p.to == toBudget {
			limit = budget + budgetEach*float64(p.place.guests)
			o.Ratio = fmt.Sprintf("budget %s", mebibytes(limit))
		} else {
			o.Ratio = within(r, p.write())
		}
		o.hold(r, limit, len(mine))
		return
	}
	x, y := pairs(mine, beside)
	if len(x) == 0 {
		o.Standing, o.Why = unmeasured, "there is nothing to hold it against"
		return
	}
	r := stats.PairedRatio(x, y)
	o.Ratio = within(r, times)
	o.hold(r, p.limit, len(x))
}

// enough is how many repetitions an interval needs to be worth one, and far is
// how many times beyond a limit, or below it, fewer of them must be to count.
const (
	enough = 3
	far    = 2
)

// hold decides by the interval: a promise is met if all of it lies within.
func (o *outcome) hold(r stats.Ratio, limit float64, repeats int) {
	if repeats < enough {
		r.Low, r.High = r.Value/far, r.Value*far
	}
	switch {
	case math.IsNaN(r.Value):
		o.Standing = unmeasured
		return
	case r.Low > limit:
		o.Standing = unmet
	case r.High <= limit:
		o.Standing = met
	default:
		o.Standing = unclear
	}
	few := "of " + plural(repeats, "repetition", "repetitions") + " only"
	switch {
	case repeats < enough && o.Standing == unclear:
		o.because(few)
	case repeats < enough:
		o.because(few + ", but far from the limit")
	case o.Standing == unclear:
		o.because("the interval reaches across the limit")
	}
}

func (o *outcome) because(why string) {
	if o.Why != "" {
		why = o.Why + "; " + why
	}
	o.Why = why
}

// failed counts the calls that were refused or timed out, and gives the first's
// words.
func (f *facts) failed(target string, p place) (n int, text string) {
	for _, r := range f.runs {
		for _, c := range r.Calls {
			if c.Target == target && at(c.Cell, c.Metric) == p && (c.Outcome == storm.Refused || c.Outcome == storm.TimedOut) {
				if h, err := c.Times(); err == nil {
					n += int(h.TotalCount())
				}
				text = cmp.Or(text, c.Text)
			}
		}
	}
	return n, text
}

// lost counts the repetitions that did not get as far as a value, and gives the
// first's reason: what the others say is not the whole.
func (f *facts) lost(target string, p promise) (n int, why string) {
	there := f.values(target, p)
	for i, r := range f.runs {
		for _, s := range r.Skipped {
			if s.Target != target || s.Scenario != p.place.scenario || s.Guests != p.place.guests || s.Disks != p.place.disks ||
				slices.ContainsFunc(there, func(v value) bool { return v.run == i && v.repeat == s.Repeat }) {
				continue
			}
			n, why = n+1, cmp.Or(why, s.Reason)
		}
	}
	return n, why
}

// whyNot says why there is nothing of a scenario.
func (f *facts) whyNot(s storm.Scenario) string {
	for _, r := range f.runs {
		for _, skipped := range r.Skipped {
			if skipped.Target == f.subject.Name && skipped.Scenario == s {
				return skipped.Reason
			}
		}
	}
	return "not in the plan of this run"
}
