package pages

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// stretch is a piece of a time line.
type stretch struct {
	at, length float64 // s from when the turn's loads began
	rate       float64 // of all operations that ended in it, 1/s
	measured   bool    // it is of a window
}

// timeLines are those of the tiles of a load in a turn, with when the first began. What
// has no value is a zero: nothing ended then. Loads that told all at once have none.
func (f *facts) timeLines(turn record.Turn, load string) (lines map[string][]stretch, began time.Time) {
	at := map[string]map[time.Time]*stretch{}
	for _, s := range f.seconds[turn] {
		if s.Labels["load"] != load {
			continue
		}
		tile := s.Labels["tile"]
		if at[tile] == nil {
			at[tile] = map[time.Time]*stretch{}
		}
		one := at[tile][s.Time]
		if one == nil {
			one = &stretch{measured: s.Window != record.WarmUp}
			at[tile][s.Time] = one
		}
		one.rate += s.Value
		if began.IsZero() || s.Time.Before(began) {
			began = s.Time
		}
	}
	lines = map[string][]stretch{}
	for tile, all := range at {
		if line := f.filled(all, began, f.length(turn)); line != nil {
			lines[tile] = line
		}
	}
	return lines, began
}

// filled puts the pieces of a line in order, and zeros where there is none: up to the end
// of the turn, for a load that broke off.
func (f *facts) filled(all map[time.Time]*stretch, began time.Time, end float64) (line []stretch) {
	if len(all) < 2 {
		return nil
	}
	for at, one := range all {
		one.at = at.Sub(began).Seconds()
		line = append(line, *one)
	}
	slices.SortFunc(line, func(a, b stretch) int { return cmp.Compare(a.at, b.at) })
	var gaps []float64
	for i := range line[1:] {
		gaps = append(gaps, line[i+1].at-line[i].at)
	}
	usual := stats.Median(gaps)
	whole := make([]stretch, 0, len(line))
	for i, one := range line {
		next := max(one.at+usual, end)
		if i+1 < len(line) {
			next = line[i+1].at
		}
		one.length = next - one.at
		if one.length < 1.5*usual {
			whole = append(whole, one)
			continue
		}
		one.length = usual
		whole = append(whole, one, stretch{at: one.at + usual, length: next - one.at - usual, measured: f.inWindow(one, line, i)})
	}
	return whole
}

// inWindow tells whether what follows a piece is measured: what stands on both sides is.
func (f *facts) inWindow(one stretch, line []stretch, i int) bool {
	return one.measured && (i+1 == len(line) || line[i+1].measured)
}

// perSecond is the time line of all tiles together. Each second has what ended in it, by
// how much of each piece lies in it.
func (f *facts) perSecond(turn record.Turn, load string) (points []plot.Point, began time.Time) {
	lines, began := f.timeLines(turn, load)
	var rates, covered []float64
	for _, line := range lines {
		for _, one := range line {
			for second := math.Floor(one.at); second < one.at+one.length; second++ {
				for len(rates) <= int(second) {
					rates, covered = append(rates, 0), append(covered, 0)
				}
				inside := min(one.at+one.length, second+1) - max(one.at, second)
				rates[int(second)] += inside * one.rate
				covered[int(second)] = max(covered[int(second)], inside)
			}
		}
	}
	for len(rates) > 1 && covered[len(covered)-1] < 0.5 {
		rates, covered = rates[:len(rates)-1], covered[:len(covered)-1] // no second
	}
	for second, rate := range rates {
		points = append(points, plot.Point{X: float64(second), Y: rate})
	}
	return points, began
}

// stall is a time in which nothing of a load ended in a tile, though it was to.
type stall struct {
	load, tile string
	turn       record.Turn
	at, length float64 // s
	due        float64 // operations, by the rate of the other seconds
}

// A stall is two seconds at least, in which by the rate of the other seconds so many
// operations were due that chance leaves all of them out in one run of a thousand: that
// chance falls by e with each operation, and there are as many tries as seconds.
const (
	leastStall = 1.9 // s: clocks tick unevenly
	thousand   = 6.9 // its logarithm
)

// stalls finds those in the windows, the longest first.
func (f *facts) stalls() (all []stall) {
	tries := 1.0
	for _, turn := range f.run.Plan.Turns {
		for _, load := range f.loadNames() {
			lines, _ := f.timeLines(turn, load)
			for tile, line := range lines {
				found, measured := stalled(line)
				tries += measured
				for _, s := range found {
					s.load, s.tile, s.turn = load, tile, turn
					all = append(all, s)
				}
			}
		}
	}
	all = slices.DeleteFunc(all, func(s stall) bool { return s.due < thousand+math.Log(tries) })
	slices.SortFunc(all, func(a, b stall) int {
		return cmp.Or(cmp.Compare(math.Round(b.length), math.Round(a.length)), cmp.Compare(a.load, b.load), f.place(a.turn.Step)-f.place(b.turn.Step),
			cmp.Compare(a.turn.Arm, b.turn.Arm), a.turn.Repetition-b.turn.Repetition, byNumber(a.tile, b.tile))
	})
	return all
}

// stalled finds where nothing ended for a while in a line, and how much of it is measured.
func stalled(line []stretch) (all []stall, length float64) {
	done := 0.0
	for _, one := range line {
		if one.measured {
			done, length = done+one.rate*one.length, length+one.length
		}
	}
	var one stall
	for i := 0; i <= len(line); i++ {
		if i < len(line) && line[i].measured && line[i].rate == 0 {
			if one.length == 0 {
				one.at = line[i].at
			}
			one.length += line[i].length
			continue
		}
		if rest := length - one.length; one.length >= leastStall && rest > 0 {
			one.due = one.length * done / rest
			all = append(all, one)
		}
		one = stall{}
	}
	return all, length
}

// stood says where loads stood still, and for how long.
func (f *facts) stood() (said []string) {
	for _, s := range f.stalls() {
		said = append(said, fmt.Sprintf("Stall: nothing of %s ended for %s in tile %s at %s, %s, repetition %d: from second %s of the load on.",
			s.load, seconds(s.length), s.tile, s.turn.Step, s.turn.Arm, s.turn.Repetition, number(s.at)))
	}
	return atMost(said, "stalls")
}
