package plot

import (
	"fmt"
	"html"
	"html/template"
	"slices"
)

// Grid is a picture of many small fields of lying bars: below each other those of
// one group of names, beside each other what they are looked at for. All fields have
// the same axis, so that any two bars can be compared.
type Grid struct {
	ID, Title, About string
	Axis             Axis
	Look             Look
	Columns          []string // names of the fields beside each other
	Rows             []GridRow
}

// GridRow is the fields beside each other that have their names in common.
type GridRow struct {
	Name  string
	Lines []GridLine
}

// GridLine is the bars of one name, one for each column.
type GridLine struct {
	Name string
	Bars []GridBar
}

// GridBar is one of them; strong ones are full, the others pale.
type GridBar struct {
	Bar
	Strong bool
}

// Of a grid.
const (
	gridLine = 18.0 // height of a line
	gridHead = 24.0 // of a group's name
	gridNote = 62.0 // room for words beside a bar
	gridGap  = 10.0 // between columns
)

// SVG draws the picture.
func (g Grid) SVG() template.HTML {
	var c canvas
	longest := 0.0
	var groups []Group
	for _, r := range g.Rows {
		longest = max(longest, wideAs(r.Name)*bold-16)
		for _, l := range r.Lines {
			longest = max(longest, wideAs(l.Name))
			for _, b := range l.Bars {
				groups = append(groups, Group{Bars: []Bar{b.Bar}})
			}
		}
	}
	axis := g.Axis.fit(valuesOf(groups, nil))
	left := 24 + min(longest, 160)
	wide := (width-left-4)/float64(max(len(g.Columns), 1)) - gridGap
	column := func(i int) area {
		at := left + float64(i)*(wide+gridGap)
		return area{left: at, right: at + max(wide-gridNote, 24)}
	}
	top := 8.0
	if slices.ContainsFunc(g.Columns, func(name string) bool { return name != "" }) {
		for i, name := range g.Columns {
			c.text(column(i).left, row, "name", "start", name)
		}
		top += row
	}
	y := top
	for _, r := range g.Rows {
		c.put(`<text x="4" y="%.1f" class="name" font-weight="600" text-anchor="start">%s</text>`, y+gridHead-8, html.EscapeString(r.Name))
		y += gridHead
		for i := range g.Columns {
			a := column(i)
			for _, t := range axis.ticks {
				c.stroke(a.x(axis.at(t)), y-2, a.x(axis.at(t)), y+gridLine*float64(len(r.Lines)), "grid")
			}
		}
		for _, l := range r.Lines {
			c.named(left-7, y+gridLine-5.5, "name", "end", l.Name, 185)
			for i, b := range l.Bars {
				b.draw(&c, column(i), axis, y+1, g.Look, fmt.Sprintf("%s=%s", r.Name, l.Name), g.Columns[i])
			}
			y += gridLine
		}
	}
	for i := range g.Columns {
		a := column(i)
		for _, t := range []float64{axis.from, 1} {
			if axis.from <= t && t <= axis.to {
				c.text(a.x(axis.at(t)), y+row, "", "middle", axis.format(t))
			}
		}
	}
	c.text(4, y+row, "", "start", g.Axis.Label)
	return c.svg(g.ID, g.Title, g.About, y+row+10)
}

func (b GridBar) draw(c *canvas, a area, axis span, top float64, look Look, name, column string) {
	c.put(`<g class="look%d">`, look)
	b.Bar.draw(c, a, axis, top, Kind{Name: column, Look: look, Pale: !b.Strong}, name)
	c.put("</g>")
}
