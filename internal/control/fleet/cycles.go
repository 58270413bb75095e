package fleet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// breakCycles gives the guests of each dependency cycle the error that names it, and removes the dependencies within
// it. The later steps see no cycles.
func breakCycles(entries []orderEntry, names []string) {
	of := components(entries)
	members := map[int][]int{}
	for i, knot := range of {
		members[knot] = append(members[knot], i)
	}
	for _, knot := range members {
		if len(knot) == 1 && !slices.Contains(entries[knot[0]].before, knot[0]) {
			continue
		}
		why := shortestCycle(entries, names, of, slices.MinFunc(knot, func(a, b int) int { return strings.Compare(names[a], names[b]) }))
		for _, i := range knot {
			within := func(j int) bool { return of[j] == of[i] }
			entries[i].cycleError = why
			entries[i].before, entries[i].after = slices.DeleteFunc(entries[i].before, within), slices.DeleteFunc(entries[i].after, within)
		}
	}
}

// components returns for each guest the number of its strongly connected component: guests that depend on each
// other share one (Tarjan's algorithm).
func components(entries []orderEntry) []int {
	const unseen = -1
	of, low, seen := make([]int, len(entries)), make([]int, len(entries)), make([]int, len(entries))
	for i := range entries {
		of[i], seen[i] = unseen, unseen
	}
	var open []int
	count := 0
	var visit func(i int) // recursion is at most as deep as there are guests
	visit = func(i int) {
		low[i], seen[i] = count, count
		count++
		open = append(open, i)
		for _, j := range entries[i].before {
			if seen[j] == unseen {
				visit(j)
			}
			if of[j] == unseen {
				low[i] = min(low[i], low[j])
			}
		}
		if low[i] != seen[i] {
			return
		}
		from := len(open) - 1
		for open[from] != i {
			from--
		}
		for _, j := range open[from:] {
			of[j] = i
		}
		open = open[:from]
	}
	for i := range entries {
		if seen[i] == unseen {
			visit(i)
		}
	}
	return of
}

// maxNamedInCycle bounds how many guests the text of one cycle names.
const maxNamedInCycle = 16

// shortestCycle names the guests of the shortest cycle from a guest of a component back to that guest.
func shortestCycle(entries []orderEntry, names []string, of []int, first int) error {
	from := map[int]int{} // the predecessor of each guest
	last := first
	for next := []int{first}; ; next = next[1:] {
		last = next[0]
		if slices.Contains(entries[last].before, first) {
			break
		}
		for _, j := range entries[last].before {
			if _, known := from[j]; !known && of[j] == of[first] {
				from[j] = last
				next = append(next, j)
			}
		}
	}
	told := []string{names[first]}
	for at := last; at != first; at = from[at] {
		told = append(told, names[at])
	}
	told = append(told, names[first])
	slices.Reverse(told)
	if more := len(told) - maxNamedInCycle; more > 0 {
		told = append(told[:maxNamedInCycle-1], fmt.Sprintf("%d more", more), names[first])
	}
	return fault.New(fault.Invalid, fault.Domain, "guests depend on each other in a circle: %s; change the <after> of one of them",
		strings.Join(told, " after "))
}
