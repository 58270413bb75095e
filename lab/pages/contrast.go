package pages

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// side is one half of a comparison: figures by their names, which are the same on
// both halves.
type side struct {
	name    string
	figures []*figure // in the order in which they are shown
	byName  map[figureName]*figure
	unsound map[figureName]string // step and arm to why their figures are not to be believed
	remarks map[figureName]string // and to what else is to be known of them
}

func newSide(name string) *side {
	return &side{name: name, byName: map[figureName]*figure{}, unsound: map[figureName]string{}, remarks: map[figureName]string{}}
}

func (s *side) add(f *figure) { s.figures, s.byName[f.name] = append(s.figures, f), f }

// whole is a run as one side: what it did in guests, or what it did outside of them.
func (f *facts) whole(name string, arms []record.Arm) (*side, error) {
	figures, err := f.figures()
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for _, arm := range arms {
		settings[arm.Name] = arm.Name
	}
	return f.side(name, settings, figures, f.doubts(), f.remarks()), nil
}

// sides parts a run by its targets, in the plan's order. Arms of one setting then
// have one name. What is outside of a guest is of no target, and on no side.
func (f *facts) sides() ([]*side, error) {
	figures, err := f.figures()
	if err != nil {
		return nil, err
	}
	doubts, remarks := f.doubts(), f.remarks()
	var all []*side
	for _, t := range f.run.Targets {
		settings := map[string]string{}
		for _, arm := range f.run.Plan.InGuests() {
			if arm.Target == t.Name {
				settings[arm.Name] = strings.TrimSuffix(arm.Name, "@"+t.Name)
			}
		}
		all = append(all, f.side(t.Name, settings, figures, doubts, remarks))
	}
	return all, nil
}

// side has the figures of some arms, each by the name of its setting. One alone tells
// nothing apart.
func (f *facts) side(name string, settings map[string]string, figures []*figure, doubts, remarks map[figureName]string) *side {
	one := newSide(name)
	if len(settings) == 1 {
		for arm := range settings {
			settings[arm] = onlyArm
		}
	}
	for _, figure := range figures {
		if setting, ok := settings[figure.name.arm]; ok {
			moved := *figure
			moved.name.arm = setting
			one.add(&moved)
		}
	}
	for _, known := range []struct{ from, into map[figureName]string }{{doubts, one.unsound}, {remarks, one.remarks}} {
		for place, words := range known.from {
			if setting, ok := settings[place.arm]; ok {
				known.into[figureName{step: place.step, arm: setting}] = words
			}
		}
	}
	return one
}

// doubts are the steps of arms in which books disagree or clocks went wrong.
func (f *facts) doubts() map[figureName]string {
	doubts := map[figureName]string{}
	for what, why := range map[string]string{"books": "books disagree there", "clock": "a clock went wrong there"} {
		for _, e := range f.events(record.Bad, what) {
			doubts[figureName{step: e.Step, arm: e.Arm}] = why
		}
	}
	return doubts
}

// remarks are those that figures of steps of arms carry.
func (f *facts) remarks() map[figureName]string {
	remarks := map[figureName]string{}
	for turn := range f.warmed {
		if words := f.remark(turn.Step, turn.Arm); words != "" {
			remarks[figureName{step: turn.Step, arm: turn.Arm}] = words
		}
	}
	return remarks
}

// noRatio is why there is no verdict on what may be none, or below it.
const noRatio = "there is no ratio of such figures"

// mainKinds are of figures that are shown of whole loads where no more can be said.
var mainKinds = []string{"throughput", "served of offered", "p50", "p99", "errors", "boot"}

// contrast sets the figures of one side beside the same of another, and counts
// those that one of them lacks. Sides that were measured in one run are beside each
// other, repetition by repetition; again is then the first side's target, measured
// a second time, or nil.
func contrast(first, second, again *side, beside bool) (pairs []pair, alone []string) {
	for _, one := range first.figures {
		other := second.byName[one.name]
		if other == nil {
			alone = append(alone, one.name.words()+": not at "+second.name)
			continue
		}
		p := pair{what: one.name.words(), step: one.name.step, row: one.name.row(), unit: one.unit, family: one.name.family(), beside: beside}
		p.main = one.name.op == all && slices.Contains(mainKinds, one.name.kind)
		p.a, p.b = other.lists(one, beside)
		place := figureName{step: one.name.step, arm: one.name.arm}
		for _, s := range []*side{first, second} {
			if why := s.unsound[place]; why != "" {
				p.unsound = why
			}
			if words := s.remarks[place]; words != "" {
				p.row += strings.TrimSuffix(words, ")") + " at " + s.name + ")"
			}
		}
		if one.name.kind == "errors" || one.name.kind == "drift" {
			if total(p.a) == 0 && total(p.b) == 0 {
				continue // nothing failed: there is nothing to compare
			}
			p.unsound = noRatio
		}
		p.again = again.ratio(one, beside)
		pairs = append(pairs, p)
	}
	for _, other := range second.figures {
		if first.byName[other.name] == nil {
			alone = append(alone, other.name.words()+": not at "+first.name)
		}
	}
	return pairs, alone
}

// lists gives the values of a figure and of its other half: of the repetitions
// that both have, if they stand beside each other.
func (f *figure) lists(base *figure, beside bool) (mine, its []float64) {
	for _, repetition := range f.repetitions() {
		if _, ok := base.values[repetition]; ok || !beside {
			mine = append(mine, f.values[repetition])
		}
	}
	for _, repetition := range base.repetitions() {
		if _, ok := f.values[repetition]; ok || !beside {
			its = append(its, base.values[repetition])
		}
	}
	return mine, its
}

func (f *figure) repetitions() (all []int) {
	for repetition := range f.values {
		all = append(all, repetition)
	}
	slices.Sort(all)
	return all
}

// ratio is that of a figure to itself, measured twice; nil where it was not.
func (s *side) ratio(base *figure, beside bool) *stats.Ratio {
	if s == nil {
		return nil
	}
	mine := s.byName[base.name]
	if mine == nil {
		return nil
	}
	p := pair{beside: beside}
	p.a, p.b = mine.lists(base, beside)
	if len(p.a) == 0 || slices.Min(p.a) <= 0 || slices.Min(p.b) <= 0 {
		return nil
	}
	r := p.ratio()
	return &r
}

// onlyArm is what a scenario's arm is called that has no other.
const onlyArm = "plain"

// words name a figure, and row names it below the name of its step.
func (n figureName) words() string {
	words := fmt.Sprintf("%s of %s at %s", n.kind, n.of, n.step)
	if n.arm != onlyArm {
		words += ", " + n.arm
	}
	return words
}

func (n figureName) row() string {
	words := n.kind + " of " + n.of
	if n.arm != onlyArm {
		words += ", " + n.arm
	}
	return words
}

// family names the figures among which one is corrected for luck. A load as a whole
// is asked before what it consists of: naming more operations costs it no verdict.
func (n figureName) family() string {
	if n.op != all {
		return n.kind + " of operations"
	}
	return n.kind
}

func total(values []float64) (sum float64) {
	for _, v := range values {
		sum += v
	}
	return sum
}
