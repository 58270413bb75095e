package plot

import (
	"fmt"
	"html"
	"html/template"
	"slices"
)

// Bars is a picture of values that stand beside each other, in groups. Bars lie,
// so that their names can be read.
type Bars struct {
	ID     string // letters, digits and dashes; the only such one of its page
	Title  string
	About  string // what is to be seen, in a sentence or two
	Axis   Axis
	Kinds  []Kind
	Groups []Group
	Marks  []Mark
}

// Kind is what the bars of one place in all groups have in common.
type Kind struct {
	Name string
	Look Look
	Pale bool // an outline rather than a full bar: two kinds of one look
}

// Group is the bars of one thing, one for each Kind.
type Group struct {
	Name string
	Bars []Bar
}

// Bar is one value, with its interval if Low and High are not both zero.
type Bar struct {
	Value, Low, High float64
	Endless          bool      // the value is only a lower bound
	None             string    // why there is no value
	Note             string    // beside the bar; empty: the value
	Parts            []float64 // what the value is the sum of: the bar is cut there
}

const thick = 14.0 // of a bar

// SVG draws the picture.
func (b Bars) SVG() template.HTML {
	var c canvas
	axis := b.Axis.fit(valuesOf(b.Groups, b.Marks))
	top := c.legend(legendOf(b.Kinds)) + 8
	each := thick*float64(len(b.Kinds)) + 3*float64(len(b.Kinds)-1) + 14
	longest := 0.0
	for _, g := range b.Groups {
		longest = max(longest, wideAs(g.Name))
	}
	a := area{left: 16 + min(longest, 220), top: top, right: width - 150, bottom: top + each*float64(len(b.Groups))}
	b.grid(&c, a, axis)
	for i, g := range b.Groups {
		at := a.top + each*float64(i) + 7
		c.named(a.left-9, at+(each-14)/2+4, "name", "end", g.Name, 250)
		for j, bar := range g.Bars {
			c.put(`<g class="look%d">`, b.Kinds[j].Look)
			bar.draw(&c, a, axis, at+float64(j)*(thick+3), b.Kinds[j], g.Name)
			c.put("</g>")
		}
	}
	c.stroke(a.left, a.top, a.left, a.bottom, "axis")
	return c.svg(b.ID, b.Title, b.About, a.bottom+44)
}

func (k Kind) class() string {
	if k.Pale {
		return "pale"
	}
	return "fill"
}

// legendOf tells kinds apart; one that has no name is alone and needs none.
func legendOf(kinds []Kind) (keys []key) {
	for _, k := range kinds {
		if k.Name != "" {
			keys = append(keys, key{k.Look, k.Name, func(c *canvas, x, y float64) {
				c.put(`<rect x="%.1f" y="%.1f" width="26" height="10" class="%s"/>`, x, y-5, k.class())
			}})
		}
	}
	return keys
}

// valuesOf are all that an axis has to reach around.
func valuesOf(groups []Group, marks []Mark) (all []float64) {
	for _, g := range groups {
		for _, bar := range g.Bars {
			if bar.None == "" {
				all = append(all, bar.Value)
				if bar.hasInterval() {
					all = append(all, bar.Low, bar.High)
				}
			}
		}
	}
	for _, m := range marks {
		all = append(all, m.At)
	}
	return slices.Clip(all)
}

func (b Bar) hasInterval() bool { return b.Low != 0 || b.High != 0 }

func (b Bars) grid(c *canvas, a area, axis span) {
	free := 0.0
	for _, t := range axis.ticks {
		at, words := a.x(axis.at(t)), axis.format(t)
		c.stroke(at, a.top, at, a.bottom, "grid")
		if half := wideAs(words) / 2; at-half > free {
			c.text(at, a.bottom+18, "", "middle", words)
			free = at + half + 4
		}
	}
	for _, m := range b.Marks {
		at := a.x(axis.at(m.At))
		c.stroke(at, a.top-4, at, a.bottom, "mark")
		c.text(at+5, a.top+2, "name", "start", m.Name)
	}
	c.text((a.left+a.right)/2, a.bottom+37, "", "middle", b.Axis.Label)
}

func (b Bar) draw(c *canvas, a area, axis span, top float64, k Kind, group string) {
	middle := top + thick/2
	if b.None != "" || !axis.shows(b.Value) {
		c.text(a.left+6, middle+4, "", "start", b.None)
		return
	}
	note := b.Note
	if note == "" {
		note = axis.format(b.Value)
	}
	end := a.x(axis.at(b.Value))
	title := html.EscapeString(fmt.Sprintf("%s, %s: %s", group, k.Name, note))
	if b.Endless {
		// The end is open: the bar goes on beyond what was waited for.
		c.put(`<path d="M%.1f %.1fH%.1fl9 %.1fl-9 %.1fH%.1fz" class="%s"><title>%s</title></path>`,
			a.left, top, end, thick/2, thick/2, a.left, k.class(), title)
		end += 9
	} else {
		c.put(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s"><title>%s</title></rect>`,
			a.left, top, max(end-a.left, 1.5), thick, k.class(), title)
	}
	sum := 0.0
	for _, part := range b.Parts {
		if sum += part; sum < b.Value {
			c.stroke(a.x(axis.at(sum)), top, a.x(axis.at(sum)), top+thick, "cut")
		}
	}
	if b.hasInterval() {
		low, high := a.x(axis.at(b.Low)), a.x(axis.at(b.High))
		c.put(`<path d="M%.1f %.1fV%.1fM%.1f %.1fH%.1fM%.1f %.1fV%.1f" class="whisker"/>`,
			low, middle-4, middle+4, low, middle, high, high, middle-4, middle+4)
		end = max(end, high)
	}
	c.text(end+6, middle+4, "", "start", note)
}
