package storm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// all are the scenarios in the order in which a plan has them.
var all = []Scenario{Start, Define, Stats, Wedge, Adopt, Save, Connect, Same, Thousand}

// Bounds of a plan: what no host and no daemon would come back from.
const (
	mostGuests = 5000
	mostDisks  = 60
)

// Names are those of all scenarios. One kills daemons: it is among them only where the lab
// may do that.
func Names(kills bool) (names []string) {
	for _, s := range all {
		if kills || s != Adopt {
			names = append(names, string(s))
		}
	}
	return names
}

// Plan makes steps of scenarios' names ("all" is each) and numbers of guests.
// Disks count where starts or definitions are what is measured. A scenario that
// needs no guests, or more than are given, has the one step that it can.
func Plan(scenarios []string, guests, disks []int) ([]Step, error) {
	if len(guests) == 0 || slices.Min(guests) < 1 || slices.Max(guests) > mostGuests {
		return nil, fault.New(fault.Invalid, fault.Call, "numbers of guests are from 1 to %d", mostGuests)
	}
	if len(disks) == 0 || slices.Min(disks) < 0 || slices.Max(disks) > mostDisks {
		return nil, fault.New(fault.Invalid, fault.Call, "numbers of disks are from 0 to %d", mostDisks)
	}
	if slices.Contains(scenarios, "all") {
		scenarios = Names(true)
	}
	var plan []Step
	for _, name := range scenarios {
		s := Scenario(name)
		if !slices.Contains(all, s) {
			return nil, fault.New(fault.Invalid, fault.Call, "there is no scenario %q: they are %s", name, strings.Trim(fmt.Sprint(all), "[]"))
		}
		plan = append(plan, s.steps(guests, disks)...)
	}
	return plan, nil
}

// ParseStep reads a step as it is written: SCENARIO:GUESTS, or
// SCENARIO:GUESTSxDISKS, or for what needs no guests SCENARIO alone.
func ParseStep(text string) (Step, error) {
	name, sizes, sized := strings.Cut(text, ":")
	guests, disks, _ := strings.Cut(sizes, "x")
	step := Step{Scenario: Scenario(name), Guests: 1}
	var err error
	if sized {
		step.Guests, err = strconv.Atoi(guests)
	}
	if err == nil && disks != "" {
		step.Disks, err = strconv.Atoi(disks)
	}
	if err != nil {
		return step, fault.New(fault.Invalid, fault.Call, "step %q wants the form SCENARIO:GUESTS or SCENARIO:GUESTSxDISKS", text)
	}
	_, err = Plan([]string{name}, []int{step.Guests}, []int{step.Disks})
	return step, err
}

func (s Scenario) steps(guests, disks []int) (steps []Step) {
	switch s {
	case Connect, Same:
		return []Step{{s, 1, 0}}
	case Thousand:
		return []Step{{s, slices.Max(guests), 0}}
	case Define:
		disks = slices.DeleteFunc(slices.Clone(disks), func(n int) bool { return n == 0 && len(disks) > 1 })
	case Start:
	default:
		disks = []int{0}
	}
	for _, d := range disks {
		for _, n := range guests {
			if s != Wedge || n >= leastWedge {
				steps = append(steps, Step{s, n, d})
			}
		}
	}
	return steps
}
