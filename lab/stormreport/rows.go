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

// stirs are the calls of others that are made both while nothing is stopped and
// while callers hang.
func (f *facts) stirs(target string) (metrics []storm.Metric, guests, disks int) {
	for _, r := range f.runs {
		for _, c := range r.Calls {
			if c.Scenario == storm.Wedge && c.Case == storm.Idle && (target == "" || c.Target == target) {
				guests, disks = max(guests, c.Guests), max(disks, c.Disks)
				if !slices.Contains(metrics, c.Metric) {
					metrics = append(metrics, c.Metric)
				}
			}
		}
	}
	slices.Sort(metrics)
	return metrics, guests, disks
}

// stir is how one kind of call fares while callers hang, beside the same when
// nothing is stopped.
type stir struct {
	metric       storm.Metric
	idle, wedged stats.Ratio // p99 in seconds
	ratio        stats.Ratio
	longest      float64 // s, while callers hang
	repeats      int
	blocked      float64 // s, if it had not ended
	failed       int
}

func (f *facts) stir(target string, m storm.Metric, guests, disks int) stir {
	idle := place{storm.Wedge, guests, disks, storm.Idle, m}
	wedged := place{storm.Wedge, guests, disks, storm.Wedged, m}
	q := question{target: target, place: wedged}
	if known, ok := f.stirred[q]; ok {
		return known
	}
	before, during := f.calls(target, idle, 0.99), f.calls(target, wedged, 0.99)
	x, y := pairs(during, before)
	s := stir{metric: m, idle: level(before), wedged: level(during), ratio: stats.PairedRatio(x, y), repeats: len(x), blocked: f.blocked(target, wedged)}
	s.failed, _ = f.failed(target, wedged)
	s.longest = math.NaN()
	if h := f.histogram(target, wedged); h != nil {
		s.longest = float64(h.Max()) / 1e6
	}
	f.stirred[q] = s
	return s
}

// disturbed is how many times as long as when nothing is stopped a call may take
// while callers hang.
const disturbed = 2

// stands holds one kind of call against that.
func (s stir) stands() (o outcome) {
	switch {
	case s.blocked > 0:
		o.Standing, o.Why = unmet, "it had not ended when the lab's patience did"
	case s.failed > 0:
		o.Standing, o.Why = unmet, fmt.Sprintf("%s of %s failed", plural(s.failed, "call", "calls"), s.metric)
	default:
		o.Ratio = within(s.ratio, times)
		if o.hold(s.ratio, disturbed, s.repeats); o.Standing == unmeasured {
			o.Why = fmt.Sprintf("no %s ended while callers hung", s.metric)
		}
	}
	return o
}

// worse orders kinds of calls by how they stand, blocked before failed, and then
// by how they fare.
func worse(a, b stir) int {
	gravity := func(s stir) int {
		return slices.Index([]standing{met, unclear, unmeasured, unmet}, s.stands().Standing)
	}
	return cmp.Or(cmp.Compare(gravity(a), gravity(b)), cmp.Compare(a.blocked, b.blocked),
		cmp.Compare(a.failed, b.failed), cmp.Compare(a.ratio.Value, b.ratio.Value))
}

// worst is the kind of call that fares worst; kinds is how many there are.
func (f *facts) worst(target string) (worst stir, blocked, kinds int) {
	metrics, guests, disks := f.stirs(target)
	var all []stir
	for _, m := range metrics {
		s := f.stir(target, m, guests, disks)
		if s.blocked > 0 {
			blocked++
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return worst, 0, 0
	}
	return slices.MaxFunc(all, worse), blocked, len(all)
}

func (f *facts) calmest(p promise) outcome {
	show := func(target string) cell {
		worst, blocked, kinds := f.worst(target)
		switch {
		case kinds == 0:
			return cell{}
		case blocked > 0:
			return cell{fmt.Sprintf("%d of %s blocked after %s", blocked, plural(kinds, "kind", "kinds"), waited(worst.blocked)), true}
		}
		return cell{Text: fmt.Sprintf("%s: %s", worst.metric, duration(worst.wedged.Value))}
	}
	o := outcome{Standing: unmeasured, Why: f.whyNot(storm.Wedge)}
	if worst, _, kinds := f.worst(f.subject.Name); kinds > 0 {
		o = worst.stands()
	}
	o.What, o.Said, o.Subject = p.what, p.said(), show(f.subject.Name)
	for _, t := range f.others {
		o.Others = append(o.Others, show(t.Name))
	}
	o.fill(f)
	return o
}

// growth holds the power with which the cost of all starts grows, beyond that of
// the bare command lines where those were run too: as its memory fills, the host
// itself starts processes more slowly.
func (f *facts) growth(p promise) outcome {
	o := outcome{Said: p.said(), Standing: unmeasured}
	show := func(target string) cell {
		if r, _ := f.power(target, p.place); !math.IsNaN(r.Value) {
			return cell{Text: digits(r.Value)}
		}
		return cell{}
	}
	mine, most := f.power(f.subject.Name, p.place)
	o.What = named(p.what, cmp.Or(most, p.place.guests))
	o.Direct, o.Subject = show(f.direct(f.subject.Name)), show(f.subject.Name)
	for _, t := range f.others {
		o.Others = append(o.Others, show(t.Name))
	}
	if math.IsNaN(mine.Value) {
		o.Why = f.whyNot(p.place.scenario)
		return o
	}
	if most != p.place.guests {
		o.Elsewise, o.Why = true, fmt.Sprintf("the promise is of %d guests", p.place.guests)
	}
	if beyond := f.beyond(p.place); !math.IsNaN(beyond.Value) {
		mine = beyond
		o.because("beyond the growth of the bare command line")
	}
	o.Ratio = within(mine, digits)
	o.hold(mine, p.limit, enough)
	return o
}

// beyond is power for the cost as a multiple of that of the bare command lines.
func (f *facts) beyond(like place) stats.Ratio {
	var n, times []float64
	for _, size := range f.sizes(f.subject.Name, like) {
		like.guests = size
		var bare []float64
		for _, v := range f.samples(f.direct(f.subject.Name), like) {
			bare = append(bare, v.value)
		}
		if len(bare) == 0 {
			continue
		}
		for _, v := range f.samples(f.subject.Name, like) {
			n, times = append(n, float64(size)), append(times, v.value/stats.Median(bare))
		}
	}
	r := stats.FitPower(n, times).Slope
	return stats.Ratio{Value: 1 + r.Value, Low: 1 + r.Low, High: 1 + r.High}
}

// power says with which power of their number the cost of all guests grows, from
// what one more costs at each number: if one more costs n to the power of x, all
// cost n to the power of 1+x. 1 is in proportion. It also gives the largest
// number.
func (f *facts) power(target string, like place) (stats.Ratio, int) {
	var n, cost []float64
	most := 0
	for _, size := range f.sizes(target, like) {
		like.guests = size
		for _, v := range f.samples(target, like) {
			n, cost = append(n, float64(size)), append(cost, v.value)
		}
		most = max(most, size)
	}
	r := stats.FitPower(n, cost).Slope
	return stats.Ratio{Value: 1 + r.Value, Low: 1 + r.Low, High: 1 + r.High}, most
}

// threads fits a line through the daemon's threads by its guests, who were added
// by as many clients at each number. Where that was not measured it is by the
// storms of starts, of which the larger also have more clients at once.
func (f *facts) threads(p promise) outcome {
	o := outcome{Said: p.said(), Standing: unmeasured}
	if len(f.sizes(f.subject.Name, p.place)) == 0 {
		p.place.scenario = storm.Start
	}
	fit := func(target string) (stats.Ratio, int) {
		var n, threads []float64
		most := 0
		for _, size := range f.sizes(target, p.place) {
			here := p.place
			here.guests, most = size, max(most, size)
			for _, v := range f.samples(target, here) {
				n, threads = append(n, float64(size)), append(threads, v.value)
			}
		}
		return stats.FitLine(n, threads).Slope, most
	}
	show := func(target string) cell {
		if r, _ := fit(target); !math.IsNaN(r.Value) {
			return cell{Text: digits(r.Value) + " a guest"}
		}
		return cell{}
	}
	mine, most := fit(f.subject.Name)
	o.What = named(p.what, cmp.Or(most, p.place.guests))
	o.Subject = show(f.subject.Name)
	for _, t := range f.others {
		o.Others = append(o.Others, show(t.Name))
	}
	if math.IsNaN(mine.Value) {
		o.Why = f.whyNot(p.place.scenario)
		return o
	}
	if most != p.place.guests {
		o.Elsewise, o.Why = true, fmt.Sprintf("the promise is of %d guests", p.place.guests)
	}
	o.Ratio = within(mine, digits)
	o.hold(mine, p.limit, enough)
	return o
}
