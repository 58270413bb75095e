package plot

import (
	"fmt"
	"html"
	"html/template"
)

// Columns is a picture of values that stand upright beside each other, in groups
// along something that has few values, such as numbers of tiles. A column that has
// parts is the sum of them, each on the one before.
type Columns struct {
	ID     string // letters, digits and dashes; the only such one of its page
	Title  string
	About  string // what is to be seen, in a sentence or two
	Along  string // what the groups go along
	Axis   Axis
	Kinds  []Kind
	Groups []Group
	Marks  []Mark
	Part   string // what a part is, as "tile": parts are numbered from 1

	noted bool // columns have their values above them
}

const (
	widest   = 46.0  // of a column
	tall     = 280.0 // of the area in which columns stand
	manyNote = 14    // more columns than these have no value beside them
)

// shades tell a part from the next: how much of the colour it has.
var shades = [...]float64{0.95, 0.7, 0.5}

// SVG draws the picture.
func (p Columns) SVG() template.HTML {
	var c canvas
	top := c.legend(legendOf(p.Kinds)) + row + 8
	axis := p.Axis.fit(valuesOf(p.Groups, p.Marks))
	a := area{left: axis.room(62), top: top, right: width - 8, bottom: top + tall}
	c.text(4, top-13, "", "start", p.Axis.Label)
	for _, t := range axis.ticks {
		at := a.y(axis.at(t))
		c.stroke(a.left, at, a.right, at, "grid")
		c.text(a.left-7, at+4, "", "end", axis.format(t))
	}
	p.noted = p.notesFit(a)
	each := (a.right - a.left) / float64(max(len(p.Groups), 1))
	wide := min(widest, (each-6)/float64(max(len(p.Kinds), 1)))
	for i, g := range p.Groups {
		middle := a.left + each*(float64(i)+0.5)
		left := middle - wide*float64(len(g.Bars))/2
		for j, bar := range g.Bars {
			c.put(`<g class="look%d">`, p.Kinds[j].Look)
			p.column(&c, a, axis, left+wide*float64(j), wide, bar, fmt.Sprintf("%s, %s", g.Name, p.Kinds[j].Name), p.Kinds[j].class())
			c.put("</g>")
		}
	}
	p.names(&c, a, each)
	for _, m := range p.Marks {
		at := a.y(axis.at(m.At))
		c.stroke(a.left, at, a.right, at, "mark")
		c.text(a.left+6, at-5, "name", "start", m.Name)
	}
	c.stroke(a.left, a.bottom, a.right, a.bottom, "axis")
	c.text((a.left+a.right)/2, a.bottom+37, "", "middle", p.Along)
	return c.svg(p.ID, p.Title, p.About, a.bottom+44)
}

// notesFit tells whether each column has room for its value above it.
func (p Columns) notesFit(a area) bool {
	columns := len(p.Groups) * len(p.Kinds)
	longest := 0.0
	for _, g := range p.Groups {
		for _, bar := range g.Bars {
			longest = max(longest, wideAs(bar.Note))
		}
	}
	return columns <= manyNote && longest <= min(widest, (a.right-a.left)/float64(max(columns, 1)))
}

// names writes those of the groups, as many as there is room for.
func (p Columns) names(c *canvas, a area, each float64) {
	free := 0.0
	for i, g := range p.Groups {
		at := a.left + each*(float64(i)+0.5)
		if half := wideAs(g.Name) / 2; at-half > free {
			c.text(at, a.bottom+18, "name", "middle", g.Name)
			free = at + half + 4
		}
	}
}

func (p Columns) column(c *canvas, a area, axis span, left, wide float64, b Bar, what, class string) {
	middle, thin := left+wide/2, wide-2
	if b.None != "" || !axis.shows(b.Value) {
		if b.None != "" {
			c.put(`<text x="%.1f" y="%.1f" text-anchor="start" transform="rotate(-90 %.1f %.1f)">%s</text>`, middle+4, a.bottom-6, middle+4, a.bottom-6, html.EscapeString(b.None))
		}
		return
	}
	note := b.Note
	if note == "" {
		note = axis.format(b.Value)
	}
	parts := b.Parts
	if len(parts) == 0 {
		parts = []float64{b.Value}
	}
	sum := 0.0
	for i, part := range parts {
		low, high := a.y(axis.at(sum)), a.y(axis.at(sum+part))
		words := what + ": " + note
		if len(b.Parts) > 1 {
			words += fmt.Sprintf(", %s %d: %s", p.Part, i+1, axis.format(part))
		}
		c.put(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s" fill-opacity="%.2f"><title>%s</title></rect>`,
			left+1, high, thin, max(low-high, 0.5), class, shades[i%len(shades)], html.EscapeString(words))
		sum += part
	}
	top := a.y(axis.at(b.Value))
	if b.hasInterval() {
		low, high := a.y(axis.at(b.Low)), a.y(axis.at(b.High))
		c.put(`<path d="M%.1f %.1fh8M%.1f %.1fV%.1fM%.1f %.1fh8" class="whisker"/>`, middle-4, low, middle, low, high, middle-4, high)
		top = min(top, high)
	}
	if p.noted {
		c.text(middle, top-6, "name", "middle", note)
	}
}
