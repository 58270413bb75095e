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
	Events []Mark // what happened at an X: upright, where Marks lie
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
	top := c.legend(keys) + row + 8
	a := area{left: y.room(58), top: top, right: width - 14 - min(longest, 170), bottom: top + 260}
	c.text(4, top-13, "", "start", l.Y.Label)
	l.grid(&c, a, x, y)
	for _, s := range l.Series {
		c.put(`<g class="look%d">`, s.Look)
		s.draw(&c, a, x, y)
		c.put("</g>")
	}
	l.marks(&c, a, y)
	l.events(&c, a, x)
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

// events are named below each other, so that those of one moment can be read.
func (l Lines) events(c *canvas, a area, x span) {
	for i, e := range l.Events {
		at := a.x(x.at(e.At))
		c.stroke(at, a.top, at, a.bottom, "mark")
		c.text(at+5, a.top+12+row*float64(i%8), "name", "start", e.Name)
	}
}

// labels names each line at its end, and keeps the names apart.
func (l Lines) labels(c *canvas, a area, x, y span) {
	type label struct {
		of   Series
		x, y float64
	}
	var all []label
	for _, s := range l.Series {
		for _, p := range slices.Backward(s.Points) {
			if x.shows(p.X) && y.shows(p.Y) {
				all = append(all, label{s, a.x(x.at(p.X)), a.y(y.at(p.Y))})
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
		c.text(n.x+9, n.y+4, "label", "start", n.of.Name)
		c.put("</g>")
	}
}
