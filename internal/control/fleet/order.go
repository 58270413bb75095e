package fleet

import (
	"slices"
)

// place is the position of one guest in a run.
type place struct {
	// before are the indexes of guests that must end first, behind those that wait for this one.
	before, behind []int
	// group is the rank of the guest's priority: a group begins when all earlier groups have ended.
	group int
	// wave counts from 1: guests of one wave do not wait for each other.
	wave int
	// circle is the error that names the guest's dependency cycle; nil: none.
	circle error
}

// direction says how a verb uses dependencies.
type direction int

const (
	unordered         direction = iota // no order
	dependenciesFirst                  // dependencies first
	dependentsFirst                    // dependents first, the reverse of upwards
)

// arrange orders the guests: lower priorities first, and each after the guests that it names. A dependency is
// placed as early as its dependents, whatever its own priority. Names outside the set are ignored. Guests in a
// dependency cycle get an error and no order among themselves; the order of all others stays.
func arrange(names []string, marks []*Marks, d direction) []place {
	places := make([]place, len(names))
	if d != unordered {
		connect(places, names, marks)
		breakCycles(places, names)
		rank(places, marks, topological(places))
	}
	if d == dependentsFirst {
		turnRound(places)
	}
	number(places)
	return places
}

// connect enters each dependency once.
func connect(places []place, names []string, marks []*Marks) {
	index := make(map[string]int, len(names))
	for i, name := range names {
		index[name] = i
	}
	for i := range places {
		for _, name := range marks[i].After {
			j, selected := index[name]
			if selected && !slices.Contains(places[i].before, j) {
				places[i].before = append(places[i].before, j)
				places[j].behind = append(places[j].behind, i)
			}
		}
	}
}

// topological sorts guests so that each comes after its dependencies. cut has removed the cycles.
func topological(places []place) []int {
	left := make([]int, len(places))
	sorted := make([]int, 0, len(places))
	for i, p := range places {
		if left[i] = len(p.before); left[i] == 0 {
			sorted = append(sorted, i)
		}
	}
	for next := 0; next < len(sorted); next++ {
		for _, j := range places[sorted[next]].behind {
			if left[j]--; left[j] == 0 {
				sorted = append(sorted, j)
			}
		}
	}
	return sorted
}

// rank groups guests by priority.
func rank(places []place, marks []*Marks, sorted []int) {
	priority := make([]int, len(places))
	for i, m := range marks {
		priority[i] = m.Priority
	}
	for _, i := range slices.Backward(sorted) {
		for _, j := range places[i].before {
			priority[j] = min(priority[j], priority[i])
		}
	}
	ranks := slices.Compact(slices.Sorted(slices.Values(priority)))
	for i := range places {
		places[i].group, _ = slices.BinarySearch(ranks, priority[i])
	}
}

func turnRound(places []place) {
	last := 0
	for _, p := range places {
		last = max(last, p.group)
	}
	for i := range places {
		p := &places[i]
		p.before, p.behind, p.group = p.behind, p.before, last-p.group
	}
}

// number numbers the waves: group by group, and within a group by the longest path of dependencies.
func number(places []place) {
	byGroup := make([]int, len(places))
	left := make([]int, len(places))
	for i := range places {
		byGroup[i], left[i] = i, len(places[i].before)
	}
	slices.SortStableFunc(byGroup, func(a, b int) int { return places[a].group - places[b].group })
	last, group, base := 0, 0, 0
	var ready []int
	settle := func() {
		for next := 0; next < len(ready); next++ {
			i := ready[next]
			places[i].wave = max(places[i].wave, base+1)
			last = max(last, places[i].wave)
			for _, j := range places[i].behind {
				places[j].wave = max(places[j].wave, places[i].wave+1)
				if left[j]--; left[j] == 0 && places[j].group == group {
					ready = append(ready, j)
				}
			}
		}
		ready = ready[:0]
	}
	for from := 0; from < len(byGroup); {
		to := from
		group, base = places[byGroup[from]].group, last
		for ; to < len(byGroup) && places[byGroup[to]].group == group; to++ {
			if left[byGroup[to]] == 0 {
				ready = append(ready, byGroup[to])
			}
		}
		settle()
		from = to
	}
}
