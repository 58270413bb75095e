package plot

import (
	"fmt"
	"html"
	"html/template"
	"slices"
	"strings"
)

// Multiples is a picture of many small ones of the same times, each with an axis of
// its own that begins at zero: what happened meanwhile.
type Multiples struct {
	ID     string // letters, digits and dashes; the only such one of its page
	Title  string
	About  string // what is to be seen, in a sentence or two
	X      Axis
	Across int // panels beside each other
	Kinds  []Kind
	Panels []Panel
	Events []Mark // what happened at an X, in all panels
}

// Panel is one of them, with a line for each kind that has points.
type Panel struct {
	Title string // with the unit
	Y     Axis
	Lines [][]Point // by X, rising; one for each kind
}

// Of a panel and what is around it.
const (
	panelHigh = 74.0
	panelGap  = 16.0
	panelHead = 28.0
	panelFoot = 24.0
)

// SVG draws the picture.
func (m Multiples) SVG() template.HTML {
	var c canvas
	var keys []key
	for _, k := range m.Kinds {
		if k.Name != "" {
			keys = append(keys, key{k.Look, k.Name, func(c *canvas, x, y float64) { c.put(`<path d="M%.1f %.1fh26" class="line"%s/>`, x, y, dash(k.Look)) }})
		}
	}
	top := c.legend(keys) + 4
	across := max(m.Across, 1)
	wide := (width - panelGap*float64(across-1)) / float64(across)
	x := m.span()
	bottom := top
	for i, p := range m.Panels {
		left, high := float64(i%across)*(wide+panelGap), top+float64(i/across)*(panelHead+panelHigh+panelFoot)
		a := area{left: left + 44, top: high + panelHead, right: left + wide - 2, bottom: high + panelHead + panelHigh}
		m.panel(&c, a, x, p)
		bottom = a.bottom + panelFoot
	}
	c.text(width/2, bottom+16, "", "middle", m.X.Label)
	return c.svg(m.ID, m.Title, m.About, bottom+24)
}

// span is the axis of all panels: from zero to the last point.
func (m Multiples) span() span {
	var all []float64
	for _, p := range m.Panels {
		for _, line := range p.Lines {
			for _, at := range line {
				all = append(all, at.X)
			}
		}
	}
	s := m.X.fit(all)
	if len(all) > 0 && slices.Max(all) > 0 {
		s.to = slices.Max(all)
	}
	return s
}

func (m Multiples) panel(c *canvas, a area, x span, p Panel) {
	var values []float64
	for _, line := range p.Lines {
		for _, at := range line {
			values = append(values, at.Y)
		}
	}
	y := p.Y.fit(values)
	c.put(`<text x="%.1f" y="%.1f" class="name" text-anchor="start">%s<title>%s</title></text>`, a.left-40, a.top-13, html.EscapeString(p.Title), html.EscapeString(said(values, y)))
	for _, t := range []float64{y.from, y.to} {
		at := a.y(y.at(t))
		c.stroke(a.left, at, a.right, at, "grid")
		c.text(a.left-5, at+4, "", "end", y.format(t))
	}
	for _, e := range m.Events {
		at := a.x(x.at(e.At))
		c.put(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="mark"><title>%s</title></line>`, at, a.top, at, a.bottom, html.EscapeString(e.Name))
	}
	for i, line := range p.Lines {
		var path strings.Builder
		pen := "M"
		for _, at := range line {
			if !x.shows(at.X) || !y.shows(at.Y) {
				pen = "M"
				continue
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", pen, a.x(x.at(at.X)), a.y(y.at(at.Y)))
			pen = "L"
		}
		if path.Len() > 0 {
			c.put(`<g class="look%d"><path d="%s" class="line thin"%s/></g>`, m.Kinds[i].Look, path.String(), dash(m.Kinds[i].Look))
		}
	}
	c.stroke(a.left, a.bottom, a.right, a.bottom, "axis")
	c.text(a.left, a.bottom+15, "", "middle", x.format(x.from))
	c.text(a.right, a.bottom+15, "", "end", x.format(x.to))
}

// said is what a panel tells to a pointer.
func said(values []float64, y span) string {
	values = slices.DeleteFunc(values, func(v float64) bool { return !y.shows(v) })
	if len(values) == 0 {
		return "nothing is known"
	}
	return fmt.Sprintf("from %s to %s", y.format(slices.Min(values)), y.format(slices.Max(values)))
}
