package plot

import (
	"html"
	"html/template"
	"math"
	"strings"
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
	Words string // below the note, in as many lines as they take
}

const (
	cellHigh = 19.0
	headHigh = 0.72 // times its length is the height of a name that stands aslant
	wordHigh = 14.0 // of a line of words below a note
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
	strength, high := m.strength(), cellHigh
	for _, r := range m.Rows {
		for _, cell := range r.Cells {
			if n := len(wrapped(cell.Words, wide-8)); n > 0 {
				high = max(high, cellHigh+wordHigh*float64(n)+3)
			}
		}
	}
	c.put(`<g class="look%d">`, m.Look)
	for i, r := range m.Rows {
		y := a.top + high*float64(i)
		c.text(a.left-8, y+cellHigh-5.5, "name", "end", r.Name)
		for j, cell := range r.Cells {
			m.cell(&c, area{a.left + wide*float64(j), y, a.left + wide*float64(j+1), y + high}, cell, strength, r.Name)
		}
	}
	c.put("</g>")
	return c.svg(m.ID, m.Title, m.About, a.top+high*float64(len(m.Rows))+8)
}

func (m Matrix) cell(c *canvas, a area, cell Cell, strength func(float64) float64, name string) {
	x, y, wide := a.left, a.top, a.right-a.left
	words := cell.Note
	if cell.None != "" {
		words = cell.None
	} else {
		c.put(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="cell" fill-opacity="%.2f"><title>%s</title></rect>`,
			x+0.5, y+0.5, wide-1, a.bottom-y-1, strength(cell.Value), html.EscapeString(strings.TrimSpace(name+": "+words+" "+cell.Words)))
	}
	if wideAs(words) < wide+4 {
		c.text(x+wide/2, y+cellHigh-5.5, "name", "middle", words)
	}
	for i, line := range wrapped(cell.Words, wide-8) {
		c.text(x+wide/2, y+cellHigh+wordHigh*float64(i+1)-5.5, "", "middle", line)
	}
}

// wrapped breaks words into lines that are so wide at most, where there are blanks.
func wrapped(words string, wide float64) (lines []string) {
	for word := range strings.FieldsSeq(words) {
		if last := len(lines) - 1; last >= 0 && wideAs(lines[last]+" "+word) <= wide {
			lines[last] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
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
