package fleet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// cut tells the guests of each circle of it, and takes out the dependencies within it, so
// that what follows knows of no circles.
func cut(places []place, names []string) {
	of := knots(places)
	members := map[int][]int{}
	for i, knot := range of {
		members[knot] = append(members[knot], i)
	}
	for _, knot := range members {
		if len(knot) == 1 && !slices.Contains(places[knot[0]].before, knot[0]) {
			continue
		}
		why := circle(places, names, of, slices.MinFunc(knot, func(a, b int) int { return strings.Compare(names[a], names[b]) }))
		for _, i := range knot {
			within := func(j int) bool { return of[j] == of[i] }
			places[i].circle = why
			places[i].before, places[i].behind = slices.DeleteFunc(places[i].before, within), slices.DeleteFunc(places[i].behind, within)
		}
	}
}

// knots gives for each guest the knot that it is in, by a number: those who lead to each
// other through dependencies are in one, as Tarjan finds them.
func knots(places []place) []int {
	const unseen = -1
	of, low, seen := make([]int, len(places)), make([]int, len(places)), make([]int, len(places))
	for i := range places {
		of[i], seen[i] = unseen, unseen
	}
	var open []int
	count := 0
	var visit func(i int) // no deeper than there are guests
	visit = func(i int) {
		low[i], seen[i] = count, count
		count++
		open = append(open, i)
		for _, j := range places[i].before {
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
	for i := range places {
		if seen[i] == unseen {
			visit(i)
		}
	}
	return of
}

// maxTold bounds the guests that one circle is told by.
const maxTold = 16

// circle names the guests of the shortest circle that leads from a guest of a knot back
// to it.
func circle(places []place, names []string, of []int, first int) error {
	from := map[int]int{} // whom each was come to from
	last := first
	for next := []int{first}; ; next = next[1:] {
		last = next[0]
		if slices.Contains(places[last].before, first) {
			break
		}
		for _, j := range places[last].before {
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
	if more := len(told) - maxTold; more > 0 {
		told = append(told[:maxTold-1], fmt.Sprintf("%d more", more), names[first])
	}
	return fault.New(fault.Invalid, fault.Domain, "guests wait for each other in a circle: %s; change what one of them comes after",
		strings.Join(told, " after "))
}
