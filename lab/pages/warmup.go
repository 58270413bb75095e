package pages

import (
	"fmt"
	"slices"

	"github.com/lodge-kvm/lodge/lab/record"
)

// warmup is how long a turn's loads worked before the first window, s.
func (f *facts) warmup(turn record.Turn) float64 {
	if e, ok := f.warmed[turn]; ok {
		return e.Values[record.ValueWarmup]
	}
	return f.run.Plan.Warmup
}

// length is that of a turn's loads, s.
func (f *facts) length(turn record.Turn) float64 {
	return f.warmup(turn) + float64(f.run.Plan.Windows)*f.run.Plan.Measure
}

// restless are the repetitions of an arm's step whose loads never became steady.
func (f *facts) restless(step, arm string) (all []int) {
	for turn, e := range f.warmed {
		if turn.Step == step && turn.Arm == arm && e.Values[record.ValueSteady] == 0 {
			all = append(all, turn.Repetition)
		}
	}
	slices.Sort(all)
	return all
}

// remark is what figures of an arm's step carry if its loads still changed when they
// were measured: nothing if they did not.
func (f *facts) remark(step, arm string) string {
	of := 0
	for turn := range f.warmed {
		if turn.Step == step && turn.Arm == arm {
			of++
		}
	}
	switch n := len(f.restless(step, arm)); n {
	case 0:
		return ""
	case of:
		return " (not steady)"
	default:
		return fmt.Sprintf(" (not steady in %d of %d)", n, of)
	}
}

// warmth says how warm-ups ended that had no length beforehand.
func (f *facts) warmth() (said []string) {
	if f.run.Plan.Steady == nil || len(f.warmed) == 0 {
		return nil
	}
	var lengths []float64
	restless := 0
	for _, e := range f.warmed {
		lengths = append(lengths, e.Values[record.ValueWarmup])
		if e.Values[record.ValueSteady] == 0 {
			restless++
		}
	}
	if restless == 0 {
		after := seconds(slices.Min(lengths))
		if most := seconds(slices.Max(lengths)); most != after {
			after += " to " + most
		}
		return []string{fmt.Sprintf("All loads were steady before they were measured, after %s.", after)}
	}
	return []string{fmt.Sprintf("In %d of %s the loads never became steady, within %s at most: those figures, marked \"not steady\", are of loads that still changed.",
		restless, plural(len(lengths), "turn"), seconds(f.run.Plan.Steady.Most))}
}

// rule says how long the warm-up of a plan is.
func rule(p record.Plan) string {
	if p.Steady == nil {
		return seconds(p.Warmup) + " of warm-up"
	}
	return fmt.Sprintf("a warm-up of %s to %s, until three windows of %s differ by less than %s", seconds(p.Warmup), seconds(p.Steady.Most), seconds(p.Steady.Window), percent(p.Steady.Within))
}
