package pages

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/record"
)

// runsAlong are the axes along which pictures run rather than along others.
var runsAlong = []string{"tiles", "guests", "vcpus", "threads", "users"}

// shape is how the steps of a run lie: on as few axes as tell them apart. Memory
// that grows with the processors says nothing that the processors do not.
type shape struct {
	along string   // that pictures run along: its values are numbers; "" if there is none
	axes  []string // all, that one first
}

func shapeOf(steps []record.Step) shape {
	values := map[string]map[string]bool{}
	for _, s := range steps {
		for axis, value := range s.Axes {
			if values[axis] == nil {
				values[axis] = map[string]bool{}
			}
			values[axis][value] = true
		}
	}
	numbers := func(axis string) bool {
		for value := range values[axis] {
			if _, err := strconv.ParseFloat(value, 64); err != nil {
				return false
			}
		}
		return true
	}
	rank := func(axis string) int {
		switch i := slices.Index(runsAlong, axis); {
		case i >= 0 && numbers(axis):
			return i
		case numbers(axis):
			return len(runsAlong)
		}
		return len(runsAlong) + 1
	}
	var s shape
	apart := 1
	for _, axis := range slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(rank(a)-rank(b), cmp.Compare(a, b))
	}) {
		if n := apartBy(steps, append(s.axes, axis)); n > apart {
			s.axes, apart = append(s.axes, axis), n
		}
	}
	if len(s.axes) > 0 && numbers(s.axes[0]) {
		s.along = s.axes[0]
	}
	return s
}

// apartBy counts the steps that axes tell apart.
func apartBy(steps []record.Step, axes []string) int {
	seen := map[string]bool{}
	for _, s := range steps {
		seen[placed(s.Axes, axes)] = true
	}
	return len(seen)
}

// placed is where on some axes something lies.
func placed(at map[string]string, axes []string) string {
	words := make([]string, len(axes))
	for i, axis := range axes {
		words[i] = axis + "=" + at[axis]
	}
	return strings.Join(words, " ")
}

// rest are the axes but the one that pictures run along.
func (s shape) rest() []string {
	if s.along == "" {
		return s.axes
	}
	return s.axes[1:]
}

// at is the place of a step on the axis along which pictures run.
func (s shape) at(step record.Step) float64 {
	x, _ := strconv.ParseFloat(step.Axes[s.along], 64)
	return x
}

// mostLines is how many there may be in one picture: as many as there are colours.
const mostLines = 5

// line is what one line or one colour of a picture is: the steps of an arm that
// differ in nothing but the axis along which it runs.
type line struct {
	name  string // what parts it from the others; "" for the only one
	arm   string
	row   string // its place on the other axes
	look  plot.Look
	steps []record.Step // rising
}

// lines are those of a run: of its guests, beside which what is outside of them stands
// in pictures of its own. Without an axis there are none.
func (s shape) lines(plan record.Plan) (all []line) {
	if s.along == "" {
		return nil
	}
	rows := map[string][]record.Step{}
	var order []string
	for _, step := range plan.Steps {
		row := placed(step.Axes, s.rest())
		if rows[row] == nil {
			order = append(order, row)
		}
		rows[row] = append(rows[row], step)
	}
	arms := plan.InGuests()
	for _, arm := range arms {
		for _, row := range order {
			steps := slices.SortedStableFunc(slices.Values(rows[row]), func(a, b record.Step) int { return cmp.Compare(s.at(a), s.at(b)) })
			l := line{arm: arm.Name, row: row, look: look(len(all)), steps: steps}
			var words []string
			if len(arms) > 1 {
				words = append(words, arm.Name)
			}
			if len(order) > 1 {
				words = append(words, row)
			}
			l.name = plain(strings.Join(words, ", "))
			all = append(all, l)
		}
	}
	return all
}
