package experiment

import (
	"fmt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/tuning"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// Room is what there is for guests.
type Room struct {
	Memory     scenario.Size // available
	Disk       scenario.Size // free where guests' files go
	Processors int
	Translated bool // guests run without KVM
	Afar       bool // it is another host: guests for loads from the lab's may be needed besides
}

// reserve is memory left to the host itself.
const reserve = 256 * scenario.MiB

// Fit refuses a plan of which a step does not fit, with the sums, before anything
// is made; or, to the limit, leaves out the steps that do not, and tells which.
func Fit(plan *scenario.Plan, room Room, toTheLimit bool) (left []string, err error) {
	if err := watchable(plan); err != nil {
		return nil, err
	}
	fits := map[int]bool{}
	setups := plan.Setups
	if room.Afar {
		setups = withOutside(plan)
	}
	for i, step := range plan.Steps {
		fits[i] = true
		for arm := range plan.Arms {
			err := check(setups[arm][i], room)
			if err == nil {
				continue
			}
			if !toTheLimit {
				return nil, fault.Wrap(err, fault.NoCapacity, fault.Host, "step %s does not fit on this host (--fit leaves such steps out)", step.Name)
			}
			left = append(left, fmt.Sprintf("step %s: %v", step.Name, err))
			fits[i] = false
			break
		}
	}
	if len(left) == len(plan.Steps) {
		return nil, fault.New(fault.NoCapacity, fault.Host, "no step fits on this host: %s", left[0])
	}
	keep := plan.Steps[:0:0]
	setups = make([][]*scenario.Setup, len(plan.Arms))
	for i, step := range plan.Steps {
		if !fits[i] {
			continue
		}
		keep = append(keep, step)
		for arm := range plan.Arms {
			setups[arm] = append(setups[arm], plan.Setups[arm][i])
		}
	}
	plan.Steps, plan.Setups = keep, setups
	return left, nil
}

// watchable refuses a warm-up until loads are steady where one cannot be watched.
func watchable(plan *scenario.Plan) error {
	for _, row := range plan.Setups {
		for _, u := range row {
			for _, l := range u.Loads {
				if !plan.Warmup.Fixed() && workload.AtOnce(l.Kind) {
					return fault.New(fault.Invalid, fault.Config, "load %s (%s) tells how long its operations took at its end only, so that it cannot be stopped once it was steady: give warmup a length, as in 20s", l.Name, l.Kind)
				}
			}
		}
	}
	return nil
}

func check(u *scenario.Setup, room Room) error {
	needs := u.Needs(room.Translated)
	switch {
	case needs.Memory+reserve > room.Memory:
		return fault.New(fault.NoCapacity, fault.Host, "%s is needed and %s of memory is available, of which %s are left to the host: %s", needs.Memory, room.Memory, reserve, needs.Sums())
	case needs.Disk > room.Disk:
		return fault.New(fault.NoCapacity, fault.Host, "%s is needed and %s of disk is free: %s", needs.Disk, room.Disk, needs.Sums())
	}
	for _, g := range u.Guests {
		if g.Count > 0 && g.MaxVCPUs > room.Processors {
			return fault.New(fault.NoCapacity, fault.Host, "%s has up to %d processors and the host %d: more in one guest measures how the host divides them", g.Role, g.MaxVCPUs, room.Processors)
		}
	}
	return checkTunings(u)
}

func checkTunings(u *scenario.Setup) error {
	for name, value := range u.Host {
		if err := tuning.Check(name, value); err != nil {
			return err
		}
	}
	return nil
}
