package plot

import (
	"html"
	"html/template"
	"math"
)

// Matrix is a picture of many values, each in the place of its row and column: the
// more of colour, the larger.
type Matrix struct {
	ID, Title, About string
	Down, Across     string // what rows and columns are
	Columns          []string
	Rows             []MatrixRow
	Log              bool // colours go by ratios
	Look             Look
}

// MatrixRow is one row, with a cell for each column.
type MatrixRow struct {
	Name  string
	Cells []Cell
}

// Cell is one value, or why there is none.
type Cell struct {
	Value float64
	Note  string
	None  string
}

const (
	cellHigh = 19.0
	headHigh = 0.72 // times its length is the height of a name that stands aslant
)

// SVG draws the picture.
func (m Matrix) SVG() template.HTML {
	var c canvas
	longest := wideAs(m.Down)
	for _, r := range m.Rows {
		longest = max(longest, wideAs(r.Name))
	}
	a := area{left: 12 + min(longest, 330), right: width - 8}
	wide := (a.right - a.left) / float64(max(len(m.Columns), 1))
	aslant, room := 0.0, 0.0
	for _, name := range m.Columns {
		if long := wideAs(name); long > wide-4 {
			aslant = max(aslant, long)
		}
	}
	if aslant > 0 {
		room = aslant*headHigh - 10
		// The last names lean out to the right.
		a.right = min(a.right, width-aslant*headHigh)
		wide = (a.right - a.left) / float64(len(m.Columns))
	}
	a.top = row + 14 + room
	c.text(a.left-8, a.top-6, "", "end", m.Down)
	c.text(a.left, row-5, "", "start", m.Across)
	for i, name := range m.Columns {
		x := a.left + wide*(float64(i)+0.5)
		if aslant > 0 {
			c.put(`<text x="%.1f" y="%.1f" class="name" text-anchor="start" transform="rotate(-45 %.1f %.1f)">%s</text>`, x, a.top-6, x, a.top-6, html.EscapeString(name))
			continue
		}
		c.text(x, a.top-6, "name", "middle", name)
	}
	strength := m.strength()
	c.put(`<g class="look%d">`, m.Look)
	for i, r := range m.Rows {
		y := a.top + cellHigh*float64(i)
		c.text(a.left-8, y+cellHigh-5.5, "name", "end", r.Name)
		for j, cell := range r.Cells {
			m.cell(&c, a.left+wide*float64(j), y, wide, cell, strength, r.Name)
		}
	}
	c.put("</g>")
	return c.svg(m.ID, m.Title, m.About, a.top+cellHigh*float64(len(m.Rows))+8)
}

func (m Matrix) cell(c *canvas, x, y, wide float64, cell Cell, strength func(float64) float64, name string) {
	words := cell.Note
	if cell.None != "" {
		words = cell.None
	} else {
		c.put(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="cell" fill-opacity="%.2f"><title>%s</title></rect>`,
			x+0.5, y+0.5, wide-1, cellHigh-1, strength(cell.Value), html.EscapeString(name+": "+words))
	}
	if wideAs(words) < wide+4 {
		c.text(x+wide/2, y+cellHigh-5.5, "name", "middle", words)
	}
}

// strength says how much of the colour a value has.
func (m Matrix) strength() func(float64) float64 {
	along := func(v float64) float64 { return v }
	if m.Log {
		along = math.Log
	}
	least, most := math.Inf(1), math.Inf(-1)
	for _, r := range m.Rows {
		for _, cell := range r.Cells {
			if v := along(cell.Value); cell.None == "" && !math.IsNaN(v) && !math.IsInf(v, 0) {
				least, most = min(least, v), max(most, v)
			}
		}
	}
	return func(v float64) float64 {
		const palest, fullest = 0.06, 0.6
		part := (along(v) - least) / (most - least)
		if !(part >= 0) {
			part = 0
		}
		return palest + (fullest-palest)*min(part, 1)
	}
}
