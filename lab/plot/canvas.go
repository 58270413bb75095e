package plot

import (
	"fmt"
	"html"
	"html/template"
	"strings"
	"unicode/utf8"
)

// Sizes of a picture, in its own units; it is drawn as wide as its page allows.
const (
	width  = 720.0
	letter = 7.2  // about the width of one
	bold   = 1.15 // times as wide is one in bold
	row    = 17.0 // height of a line of text
)

// canvas collects the elements of a picture.
type canvas struct{ strings.Builder }

func (c *canvas) put(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

// text writes words; anchor is start, middle or end.
func (c *canvas) text(x, y float64, class, anchor, words string) {
	c.put(`<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`, x, y, class, anchor, html.EscapeString(words))
}

func (c *canvas) stroke(x1, y1, x2, y2 float64, class string) {
	c.put(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

// dot draws the marker of a look, which tells its note to a pointer.
func (c *canvas) dot(look Look, x, y float64, note string) {
	title := ""
	if note != "" {
		title = "<title>" + html.EscapeString(note) + "</title>"
	}
	switch look {
	case Blue:
		c.put(`<circle cx="%.1f" cy="%.1f" r="4" class="dot">%s</circle>`, x, y, title)
	case Orange:
		c.put(`<rect x="%.1f" y="%.1f" width="7.6" height="7.6" class="dot">%s</rect>`, x-3.8, y-3.8, title)
	case Gray:
		c.put(`<path d="M%.1f %.1fl4.6 8h-9.2z" class="dot">%s</path>`, x, y-5, title)
	case Teal:
		c.put(`<path d="M%.1f %.1fl5 5-5 5-5-5z" class="dot">%s</path>`, x, y-5, title)
	case Pink:
		c.put(`<path d="M%.1f %.1fl8 8m0-8l-8 8" class="dot">%s</path>`, x-4, y-4, title)
	case Green:
		c.put(`<path d="M%.1f %.1fv9m-4.5-4.5h9" class="dot">%s</path>`, x, y-4.5, title)
	case Red:
		c.put(`<path d="M%.1f %.1fl4 2.3v4.6l-4 2.3l-4-2.3v-4.6z" class="dot">%s</path>`, x, y-4.6, title)
	default:
		c.put(`<path d="M%.1f %.1fl4.6-8h-9.2z" class="dot">%s</path>`, x, y+5, title)
	}
}

// headEnds is where a picture's words about itself end and its marks begin.
const headEnds = "</desc>\n"

// svg wraps what was drawn. The id must be the only such one of its page.
func (c *canvas) svg(id, title, about string, height float64) template.HTML {
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" class="plot" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" role="img" aria-labelledby="%s-title %s-about">`+"\n",
		width, height, width, height, id, id)
	fmt.Fprintf(&out, "<title id=\"%s-title\">%s</title>\n<desc id=\"%s-about\">%s"+headEnds, id, html.EscapeString(title), id, html.EscapeString(about))
	out.WriteString(c.String() + "</svg>\n")
	return template.HTML(out.String()) // every word in it is escaped above
}

// key is one entry of a legend.
type key struct {
	look Look
	name string
	draw func(c *canvas, x, y float64) // a sample, 26 wide, beginning at x, its middle at y
}

// legend writes keys from the left, in as many rows as they need, and gives the
// height that they take.
func (c *canvas) legend(keys []key) float64 {
	if len(keys) == 0 {
		return 0
	}
	x, y := 4.0, 12.0
	for _, k := range keys {
		wide := 26 + 8 + wideAs(k.name) + 18
		if x > 4 && x+wide > width {
			x, y = 4, y+row
		}
		c.put(`<g class="look%d">`, k.look)
		k.draw(c, x, y-4)
		c.put("</g>")
		c.text(x+32, y, "name", "start", k.name)
		x += wide
	}
	return y + 10
}

// named writes a name that is cut to its room. The whole of it is told to a pointer.
func (c *canvas) named(x, y float64, class, anchor, words string, room float64) {
	short := fitted(words, room)
	if short == words {
		c.text(x, y, class, anchor, words)
		return
	}
	c.put(`<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s<title>%s</title></text>`, x, y, class, anchor, html.EscapeString(short), html.EscapeString(words))
}

// fitted cuts words to a width.
func fitted(words string, room float64) string {
	letters := []rune(words)
	most := max(int(room/letter), 1)
	if len(letters) <= most {
		return words
	}
	return strings.TrimSpace(string(letters[:most-1])) + "…"
}

func wideAs(words string) float64 { return letter * float64(utf8.RuneCountInString(words)) }
