package plot

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"
)

// Lines is a picture of values that go along something.
type Lines struct {
	ID     string // letters, digits and dashes; the only such one of its page
	Title  string
	About  string // what is to be seen, in a sentence or two
	X, Y   Axis
	Series []Series
	Marks  []Mark
	Events []Mark // what happened at an X: upright, with its name above the lines
}

// Series is one line.
type Series struct {
	Name   string
	Look   Look
	Points []Point // by X, rising
	Bare   bool    // without markers: a curve of very many points
}

// Point is one value, with its interval if Low and High are not both zero.
type Point struct{ X, Y, Low, High float64 }

// Mark is a value that others are held against.
type Mark struct {
	At   float64
	Name string
}

// area is the part of a picture where values are.
type area struct{ left, top, right, bottom float64 }

func (a area) x(part float64) float64 { return a.left + part*(a.right-a.left) }
func (a area) y(part float64) float64 { return a.bottom - part*(a.bottom-a.top) }

// SVG draws the picture.
func (l Lines) SVG() template.HTML {
	x, y := l.spans()
	var c canvas
	var keys []key
	longest := 0.0
	for _, s := range l.Series {
		if s.Name == "" { // it is alone and needs none
			continue
		}
		keys = append(keys, key{s.Look, s.Name, func(c *canvas, x, y float64) {
			c.put(`<path d="M%.1f %.1fh26" class="line"%s/>`, x, y, dash(s.Look))
			c.dot(s.Look, x+13, y, "")
		}})
		longest = max(longest, wideAs(s.Name)*bold)
	}
	named := c.legend(keys) + row + 8
	a := area{left: y.room(58), right: width - 14 - min(longest, mostLabel)}
	flags := l.flags(a, x)
	a.top = named + row*float64(rowsOf(flags))
	a.bottom = a.top + 260
	c.text(4, named-13, "", "start", l.Y.Label)
	l.grid(&c, a, x, y)
	for _, s := range l.Series {
		c.put(`<g class="look%d">`, s.Look)
		s.draw(&c, a, x, y)
		c.put("</g>")
	}
	l.marks(&c, a, y)
	raise(&c, flags, a, named)
	l.labels(&c, a, x, y)
	return c.svg(l.ID, l.Title, l.About, a.bottom+44)
}

func (l Lines) spans() (x, y span) {
	var xs, ys []float64
	for _, s := range l.Series {
		for _, p := range s.Points {
			xs, ys = append(xs, p.X), append(ys, p.Y)
			if p.hasInterval() {
				ys = append(ys, p.Low, p.High)
			}
		}
	}
	for _, m := range l.Marks {
		ys = append(ys, m.At)
	}
	return l.X.tight(xs), l.Y.fit(ys)
}

// tight is an axis that ends with the last value, without rounding, and if it is
// logarithmic and its ticks are given begins with the first.
func (a Axis) tight(values []float64) span {
	s := a.fit(values)
	values = slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return !s.shows(v) })
	if a.Scale == Linear && len(values) > 0 && slices.Max(values) > s.from {
		s.to = slices.Max(values)
		s.ticks = within(s.ticks, s.from, s.to)
	}
	if a.Ticks != nil && a.Scale == Log && len(values) > 0 {
		from, to := slices.Min(values), slices.Max(values)
		if from > 0 && from < to {
			s.from, s.to = from, to
		}
	}
	return s
}

func (p Point) hasInterval() bool { return p.Low != 0 || p.High != 0 }

func (l Lines) grid(c *canvas, a area, x, y span) {
	for _, t := range y.ticks {
		at := a.y(y.at(t))
		c.stroke(a.left, at, a.right, at, "grid")
		c.text(a.left-7, at+4, "", "end", y.format(t))
	}
	free := width // from other ticks' words
	for _, t := range slices.Backward(x.ticks) {
		at, words := a.x(x.at(t)), x.format(t)
		c.stroke(at, a.bottom, at, a.bottom+4, "axis")
		if half := wideAs(words) / 2; at+half < free {
			c.text(at, a.bottom+18, "", "middle", words)
			free = at - half - 4
		}
	}
	c.stroke(a.left, a.bottom, a.right, a.bottom, "axis")
	c.text((a.left+a.right)/2, a.bottom+37, "", "middle", l.X.Label)
}

// draw draws a line in pieces: where a value is missing it has a gap.
func (s Series) draw(c *canvas, a area, x, y span) {
	var path, above, below strings.Builder
	var back []string
	pen := "M"
	for _, p := range s.Points {
		if !x.shows(p.X) || !y.shows(p.Y) {
			pen = "M"
			continue
		}
		px := a.x(x.at(p.X))
		fmt.Fprintf(&path, "%s%.1f %.1f", pen, px, a.y(y.at(p.Y)))
		low, high := p.Y, p.Y
		if p.hasInterval() && y.shows(p.Low) && y.shows(p.High) {
			low, high = p.Low, p.High
		}
		fmt.Fprintf(&above, "%.1f %.1f ", px, a.y(y.at(high)))
		back = append(back, fmt.Sprintf("%.1f %.1f", px, a.y(y.at(low))))
		pen = "L"
	}
	slices.Reverse(back)
	below.WriteString(strings.Join(back, " "))
	if slices.ContainsFunc(s.Points, Point.hasInterval) {
		c.put(`<polygon points="%s%s" class="band"/>`, above.String(), below.String())
	}
	c.put(`<path d="%s" class="line"%s/>`, path.String(), dash(s.Look))
	for _, p := range s.Points {
		if s.Bare || !x.shows(p.X) || !y.shows(p.Y) {
			continue
		}
		note := fmt.Sprintf("%s, %s: %s", s.Name, x.format(p.X), y.format(p.Y))
		if p.hasInterval() {
			note += fmt.Sprintf(" (%s to %s)", y.format(p.Low), y.format(p.High))
		}
		c.dot(s.Look, a.x(x.at(p.X)), a.y(y.at(p.Y)), note)
	}
}

// dash is an attribute and not in the style sheet, because a bar has none.
func dash(l Look) string {
	if d := palette[l].dash; d != "" {
		return fmt.Sprintf(` stroke-dasharray="%s"`, d)
	}
	return ""
}

func (l Lines) marks(c *canvas, a area, y span) {
	for _, m := range l.Marks {
		at := a.y(y.at(m.At))
		c.stroke(a.left, at, a.right, at, "mark")
		if at-5 < a.top+letter {
			at += row // not into the axis's own words
		}
		c.text(a.left+6, at-5, "name", "start", m.Name)
	}
}

// flag names what happened at a moment, above the lines and not on them.
type flag struct {
	at, from, to float64 // the moment, and what its name takes, in the picture
	row          int     // from above
	anchor, name string
}

// flags puts names beside each other as long as there is room, and else below.
func (l Lines) flags(a area, x span) (all []flag) {
	events := slices.SortedStableFunc(slices.Values(l.Events), func(m, n Mark) int { return cmp.Compare(m.At, n.At) })
	for _, e := range events {
		f := flag{at: a.x(x.at(e.At)), anchor: "start", name: fitted(e.Name, width-16)}
		f.from, f.to = f.at+5, f.at+5+wideAs(f.name)
		if f.to > width-4 {
			f.from, f.to, f.anchor = f.at-5-wideAs(f.name), f.at-5, "end"
		}
		if f.from < 4 { // it is longer than either side
			f.from, f.to, f.anchor = 4, 4+wideAs(f.name), "start"
		}
		for slices.ContainsFunc(all, f.meets) {
			f.row++
		}
		all = append(all, f)
	}
	return all
}

// meets tells whether two lie on each other.
func (f flag) meets(other flag) bool {
	return f.row == other.row && min(f.at, f.from) < other.to+8 && min(other.at, other.from) < f.to+8
}

func rowsOf(flags []flag) (rows int) {
	for _, f := range flags {
		rows = max(rows, f.row+1)
	}
	return rows
}

// raise draws the lines first, so that names are read where a line goes through them.
func raise(c *canvas, flags []flag, a area, top float64) {
	for _, f := range flags {
		c.stroke(f.at, top+row*float64(f.row)-10, f.at, a.bottom, "mark")
	}
	for _, f := range flags {
		at := f.from
		if f.anchor == "end" {
			at = f.to
		}
		c.text(at, top+row*float64(f.row), "name", f.anchor, f.name)
	}
}

// mostLabel is the room for the names at the ends of lines.
const mostLabel = 170.0

// labels names each line at its end, and keeps the names apart.
func (l Lines) labels(c *canvas, a area, x, y span) {
	type label struct {
		of Series
		y  float64
	}
	var all []label
	for _, s := range l.Series {
		for _, p := range slices.Backward(s.Points) {
			if x.shows(p.X) && y.shows(p.Y) {
				all = append(all, label{s, a.y(y.at(p.Y))})
				break
			}
		}
	}
	slices.SortStableFunc(all, func(m, n label) int { return cmp.Compare(m.y, n.y) })
	for i := range all {
		if i > 0 {
			all[i].y = max(all[i].y, all[i-1].y+row-2)
		}
	}
	// Those that were pushed below the picture push the others up again.
	lowest := a.bottom
	for _, n := range slices.Backward(all) {
		n.y = min(n.y, lowest)
		lowest = n.y - (row - 2)
		c.put(`<g class="look%d">`, n.of.Look)
		c.named(a.right+9, n.y+4, "label", "start", n.of.Name, mostLabel)
		c.put("</g>")
	}
}
