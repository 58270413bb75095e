package fleet

import (
	"slices"
)

// orderEntry is the position of one guest in a run.
type orderEntry struct {
	// before are the indexes of guests that must end first, after those that wait for this one.
	before, after []int
	// group is the rank of the guest's priority: a group begins when all earlier groups have ended.
	group int
	// wave counts from 1: guests of one wave do not wait for each other.
	wave int
	// cycleError is the error that names the guest's dependency cycle; nil: none.
	cycleError error
}

// direction says how a verb uses dependencies.
type direction int

const (
	unordered         direction = iota // no order
	dependenciesFirst                  // dependencies first
	dependentsFirst                    // dependents first, the reverse of dependenciesFirst
)

// orderGuests orders the guests: lower priorities first, and each after the guests that it names. A dependency is
// placed as early as its dependents, whatever its own priority. Names outside the set are ignored. Guests in a
// dependency cycle get an error and no order among themselves; the order of all others stays.
func orderGuests(names []string, marks []*Marks, d direction) []orderEntry {
	entries := make([]orderEntry, len(names))
	if d != unordered {
		linkDependencies(entries, names, marks)
		breakCycles(entries, names)
		groupByPriority(entries, marks, topological(entries))
	}
	if d == dependentsFirst {
		reverse(entries)
	}
	numberWaves(entries)
	return entries
}

// linkDependencies records each dependency once, on both sides.
func linkDependencies(entries []orderEntry, names []string, marks []*Marks) {
	index := make(map[string]int, len(names))
	for i, name := range names {
		index[name] = i
	}
	for i := range entries {
		for _, name := range marks[i].After {
			j, selected := index[name]
			if selected && !slices.Contains(entries[i].before, j) {
				entries[i].before = append(entries[i].before, j)
				entries[j].after = append(entries[j].after, i)
			}
		}
	}
}

// topological sorts guests so that each comes after its dependencies. breakCycles has removed the cycles.
func topological(entries []orderEntry) []int {
	left := make([]int, len(entries))
	sorted := make([]int, 0, len(entries))
	for i, p := range entries {
		if left[i] = len(p.before); left[i] == 0 {
			sorted = append(sorted, i)
		}
	}
	for next := 0; next < len(sorted); next++ {
		for _, j := range entries[sorted[next]].after {
			if left[j]--; left[j] == 0 {
				sorted = append(sorted, j)
			}
		}
	}
	return sorted
}

// groupByPriority groups guests by priority.
func groupByPriority(entries []orderEntry, marks []*Marks, sorted []int) {
	priority := make([]int, len(entries))
	for i, m := range marks {
		priority[i] = m.Priority
	}
	for _, i := range slices.Backward(sorted) {
		for _, j := range entries[i].before {
			priority[j] = min(priority[j], priority[i])
		}
	}
	ranks := slices.Compact(slices.Sorted(slices.Values(priority)))
	for i := range entries {
		entries[i].group, _ = slices.BinarySearch(ranks, priority[i])
	}
}

// reverse turns the order round: dependents end before their dependencies.
func reverse(entries []orderEntry) {
	last := 0
	for _, p := range entries {
		last = max(last, p.group)
	}
	for i := range entries {
		p := &entries[i]
		p.before, p.after, p.group = p.after, p.before, last-p.group
	}
}

// numberWaves numbers the waves: group by group, and within a group by the longest path of dependencies.
func numberWaves(entries []orderEntry) {
	byGroup := make([]int, len(entries))
	left := make([]int, len(entries))
	for i := range entries {
		byGroup[i], left[i] = i, len(entries[i].before)
	}
	slices.SortStableFunc(byGroup, func(a, b int) int { return entries[a].group - entries[b].group })
	last, group, base := 0, 0, 0
	var ready []int
	settle := func() {
		for next := 0; next < len(ready); next++ {
			i := ready[next]
			entries[i].wave = max(entries[i].wave, base+1)
			last = max(last, entries[i].wave)
			for _, j := range entries[i].after {
				entries[j].wave = max(entries[j].wave, entries[i].wave+1)
				if left[j]--; left[j] == 0 && entries[j].group == group {
					ready = append(ready, j)
				}
			}
		}
		ready = ready[:0]
	}
	for from := 0; from < len(byGroup); {
		to := from
		group, base = entries[byGroup[from]].group, last
		for ; to < len(byGroup) && entries[byGroup[to]].group == group; to++ {
			if left[byGroup[to]] == 0 {
				ready = append(ready, byGroup[to])
			}
		}
		settle()
		from = to
	}
}
