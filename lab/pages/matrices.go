package pages

import (
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab/plot"
)

// Bounds of a matrix that can be read, and how many of them are drawn: what is
// beyond is in the tables.
const (
	mostColumns  = 10
	mostRows     = 40
	mostMatrices = 24
)

// armAxis stands for the arms among the axes; no scenario's axis has such a name.
const armAxis = " arm"

// spread is which axes of a matrix are whose.
type spread struct{ pictures, rows, columns []string }

// spot is one arm's one step.
type spot struct {
	axes      map[string]string
	step, arm string
}

// spots are all that the plan has in guests.
func (f *facts) spots() (all []spot) {
	for _, step := range f.run.Plan.Steps {
		for _, arm := range f.run.Plan.InGuests() {
			axes := maps.Clone(step.Axes)
			if axes == nil {
				axes = map[string]string{}
			}
			axes[armAxis] = arm.Name
			all = append(all, spot{axes, step.Name, arm.Name})
		}
	}
	return all
}

// spreadOf deals the axes out. Kinds of work have a picture each, for one is not
// more than another; what is left over is rows.
func spreadOf(axes []string, spots []spot) (s spread) {
	sizes := map[string]int{}
	for _, axis := range axes {
		sizes[axis] = len(valuesAlong(spots, []string{axis}))
	}
	rest := slices.Clone(axes)
	take := func(axis string) { rest = slices.DeleteFunc(rest, func(a string) bool { return a == axis }) }
	if slices.Contains(rest, workAxis) && len(rest) > 1 {
		s.pictures = append(s.pictures, workAxis)
		take(workAxis)
	}
	columns := 1
	for range 2 {
		best := ""
		for _, axis := range rest {
			if n := sizes[axis]; len(rest) > 1 && n*columns <= mostColumns && (best == "" || n > sizes[best]) {
				best = axis
			}
		}
		if best == "" {
			break
		}
		s.columns, columns = append(s.columns, best), columns*sizes[best]
		take(best)
		if len(rest) < 3 {
			break
		}
	}
	for len(rest) > 1 && len(valuesAlong(spots, rest)) > mostRows {
		fewest := slices.MinFunc(rest, func(a, b string) int { return sizes[a] - sizes[b] })
		s.pictures = append(s.pictures, fewest)
		take(fewest)
	}
	s.rows = rest
	return s
}

// valuesAlong are the places on some axes, in the order of the plan.
func valuesAlong(spots []spot, axes []string) (all []string) {
	seen := map[string]bool{}
	for _, at := range spots {
		if key := short(at.axes, axes); !seen[key] {
			seen[key] = true
			all = append(all, key)
		}
	}
	return all
}

// short is a place in few words.
func short(at map[string]string, axes []string) string {
	var words []string
	for _, axis := range axes {
		if axis == armAxis {
			words = append(words, at[axis])
			continue
		}
		words = append(words, axis+"="+at[axis])
	}
	return plain(strings.Join(words, " "))
}

// matrices show a load's throughput everywhere.
func (f *facts) matrices(load string, m measure) (all []drawing) {
	spots, axes := f.spots(), slices.Clone(f.shape.axes)
	if len(f.run.Plan.InGuests()) > 1 {
		axes = append(axes, armAxis)
	}
	s := spreadOf(axes, spots)
	for _, which := range valuesAlong(spots, s.pictures) {
		if len(all) == mostMatrices {
			break
		}
		var here []spot
		for _, at := range spots {
			if short(at.axes, s.pictures) == which {
				here = append(here, at)
			}
		}
		all = append(all, f.matrix(load, m, s, which, here))
	}
	return all
}

func (f *facts) matrix(load string, m measure, s spread, which string, spots []spot) drawing {
	p := plot.Matrix{
		Title: strings.TrimSuffix(fmt.Sprintf("Throughput of %s, %s", plain(load), which), ", "), Across: axesNames(s.columns), Look: plot.Blue, Log: true,
		About: fmt.Sprintf("Medians over repetitions, %s. The fuller a cell, the more; equal ratios are equally many shades. What is blank was not measured.", m.label),
	}
	columns := valuesAlong(spots, s.columns)
	for _, name := range columns {
		if len(s.columns) == 1 { // which axis it is stands above
			name = strings.TrimPrefix(name, s.columns[0]+"=")
		}
		p.Columns = append(p.Columns, name)
	}
	cells := map[[2]string]plot.Cell{}
	for _, at := range spots {
		cell := plot.Cell{None: "–"}
		if w := f.find(at.step, at.arm, load, m.op); w != nil && w.rate.Value > 0 {
			value := w.rate.Value * m.each(w)
			cell = plot.Cell{Value: value, Note: number(value)}
		}
		cells[[2]string{short(at.axes, s.rows), short(at.axes, s.columns)}] = cell
	}
	for _, name := range valuesAlong(spots, s.rows) {
		r := plot.MatrixRow{Name: name}
		for _, column := range columns {
			cell, ok := cells[[2]string{name, column}]
			if !ok {
				cell.None = " "
			}
			r.Cells = append(r.Cells, cell)
		}
		p.Rows = append(p.Rows, r)
	}
	return drawing{p.Title, p.About, func(id string) template.HTML { p.ID = id; return p.SVG() }}
}

func axesNames(axes []string) string { return plain(strings.TrimSpace(strings.Join(axes, ", "))) }
