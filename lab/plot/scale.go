package plot

import (
	"math"
	"slices"
	"strconv"
)

// Scale says how values lie along an axis.
type Scale int

// The scales.
const (
	Linear Scale = iota
	Log          // equal ratios are equally long
	Nines        // for percentiles, 0 to 1: each further nine is equally long
)

// Axis is one side of a picture.
type Axis struct {
	Label  string
	Scale  Scale
	From   float64                // the axis begins here, or below if values lie there, if not zero
	Ticks  []float64              // nil: chosen
	Format func(v float64) string // of values; nil: as few digits as are needed
}

// span is an axis that fits values.
type span struct {
	scale    Scale
	from, to float64
	ticks    []float64
	format   func(v float64) string
}

// Bounds of what an axis can show: what is measured is far within them.
const (
	least   = 1e-15
	longest = 1e12 // times that the end of a logarithmic axis is its beginning
)

// fit makes an axis reach around all values that it can show. A linear one
// begins at zero, lest it make much of little.
func (a Axis) fit(values []float64) span {
	s := span{a.Scale, math.Inf(1), math.Inf(-1), a.Ticks, a.Format}
	for _, v := range append(values, a.From) {
		if s.shows(v) && v != 0 {
			s.from, s.to = min(s.from, v), max(s.to, v)
		}
	}
	if !(s.to > least) {
		s.from, s.to = 0.5, 1 // there is nothing to show
	}
	if s.format == nil {
		s.format = func(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
	}
	switch a.Scale {
	case Linear:
		s.linear()
	case Log:
		s.log()
		if a.From > s.from && a.From < s.to && !slices.ContainsFunc(values, func(v float64) bool { return v > 0 && v < a.From }) {
			s.from, s.ticks = a.From, within(s.ticks, a.From, s.to)
		}
	case Nines:
		s.nines()
	}
	return s
}

// shows tells whether the axis has a place for a value.
func (s span) shows(v float64) bool {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return false
	case s.scale == Log:
		return v > 0
	case s.scale == Nines:
		return v >= 0 && v < 1
	}
	return true
}

// at gives the place of a value, 0 at the axis's beginning and 1 at its end. What
// lies outside is put on the edge.
func (s span) at(v float64) float64 {
	from, to, x := s.from, s.to, v
	switch s.scale {
	case Log:
		from, to, x = math.Log(from), math.Log(to), math.Log(x)
	case Nines:
		from, to, x = nines(from), nines(to), nines(x)
	case Linear:
	}
	return min(max((x-from)/(to-from), 0), 1)
}

// mostNines is the highest percentile that an axis shows.
const mostNines = 0.999999

func nines(q float64) float64 { return -math.Log10(1 - min(max(q, 0), mostNines)) }

func (s *span) linear() {
	s.from = min(s.from, 0)
	step := niceStep((s.to - s.from) / 5)
	s.to = step * math.Ceil(s.to/step-1e-9)
	if s.ticks == nil {
		for i := math.Floor(s.from / step); i*step <= s.to+step/2; i++ {
			s.ticks = append(s.ticks, i*step)
		}
	}
}

// niceStep is the least of 1, 2, 5, 10, … and their tenths and so on that is not
// below a distance.
func niceStep(distance float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(distance)))
	for _, m := range []float64{1, 2, 5} {
		if m*decade >= distance*(1-1e-9) {
			return m * decade
		}
	}
	return 10 * decade
}

// log rounds the ends to 1, 2 or 5 times a power of ten, so that the axis begins
// and ends with a tick.
func (s *span) log() {
	const close = 1e-9
	s.from = max(s.from, s.to/longest)
	steps := roundNumbers(s.from, s.to, []float64{1, 2, 5})
	s.from, s.to = steps[0], steps[len(steps)-1]
	for len(steps) > 2 && steps[1] <= s.from*(1+close) {
		steps = steps[1:]
	}
	if s.ticks != nil {
		return
	}
	switch decades := math.Log10(s.to / s.from); {
	case decades <= 1:
		s.ticks = within(roundNumbers(s.from, s.to, []float64{1, 1.5, 2, 3, 5, 7}), s.from, s.to)
	case decades <= 3.2:
		s.ticks = steps
	default:
		s.ticks = within(roundNumbers(s.from, s.to, []float64{1}), s.from, s.to)
	}
}

// roundNumbers lists the multiples of powers of ten that reach around from…to: the
// first is not above from, the last not below to.
func roundNumbers(from, to float64, multiples []float64) []float64 {
	const close = 1e-9
	var all []float64
	for decade := math.Pow(10, math.Floor(math.Log10(from))-1); ; decade *= 10 {
		for _, m := range multiples {
			v := m * decade
			if v <= from*(1+close) {
				all = all[:0] // nearer to from than what was there
			}
			all = append(all, v)
			if v >= to*(1-close) && len(all) > 1 {
				return all
			}
		}
	}
}

func within(values []float64, from, to float64) []float64 {
	const close = 1e-9
	var all []float64
	for _, v := range values {
		if v >= from*(1-close) && v <= to*(1+close) {
			all = append(all, v)
		}
	}
	return all
}

func (s *span) nines() {
	s.from = 0
	s.to = min(max(s.to, 0.9), mostNines)
	if s.ticks == nil {
		s.ticks = []float64{0, 0.5}
		for q := 0.9; q <= s.to+1e-12; q = 1 - (1-q)/10 {
			s.ticks = append(s.ticks, q)
		}
	}
}

// room is how much the words at the ticks of an upright axis take, at least so much.
func (s span) room(least float64) float64 {
	for _, t := range s.ticks {
		least = max(least, wideAs(s.format(t))*bold+16)
	}
	return least
}
