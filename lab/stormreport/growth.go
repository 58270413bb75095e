package stormreport

import (
	"cmp"
	"fmt"
	"math"

	"github.com/lodge-kvm/lodge/lab/stats"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// slope is what a promise is held against that is of how something grows with the
// guests: that of the subject's, with the largest number, and the columns filled in.
// Where nothing was measured it is not a number, and the outcome says why.
func (f *facts) slope(p promise, fit func(target string) (stats.Ratio, int), unit string) (outcome, stats.Ratio) {
	show := func(target string) cell {
		if r, _ := fit(target); !math.IsNaN(r.Value) {
			return cell{Text: digits(r.Value) + unit}
		}
		return cell{}
	}
	mine, most := fit(f.subject.Name)
	o := outcome{Said: p.said(), Standing: unmeasured, What: named(p.what, cmp.Or(most, p.place.guests)), Subject: show(f.subject.Name)}
	for _, t := range f.others {
		o.Others = append(o.Others, show(t.Name))
	}
	switch {
	case math.IsNaN(mine.Value):
		o.Why = f.whyNot(p.place.scenario)
	case most != p.place.guests:
		o.Elsewise, o.Why = true, fmt.Sprintf("the promise is of %d guests", p.place.guests)
	}
	if p.to == toLine {
		o.Direct = show(f.direct(f.subject.Name))
	}
	return o, mine
}

// growth holds the power with which the cost of all starts grows, beyond that of
// the bare command lines where those were run too: as its memory fills, the host
// itself starts processes more slowly.
func (f *facts) growth(p promise) outcome {
	o, mine := f.slope(p, func(target string) (stats.Ratio, int) { return f.power(target, p.place) }, "")
	if math.IsNaN(mine.Value) {
		return o
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
	if len(f.sizes(f.subject.Name, p.place)) == 0 {
		p.place.scenario = storm.Start
	}
	o, mine := f.slope(p, func(target string) (stats.Ratio, int) {
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
	}, " a guest")
	if math.IsNaN(mine.Value) {
		return o
	}
	o.Ratio = within(mine, digits)
	o.hold(mine, p.limit, enough)
	return o
}
