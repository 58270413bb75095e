package plot

import (
	"fmt"
	"html/template"
	"strings"
)

// Look is how a series looks. Its colour is not alone: dash and marker tell it
// apart as well.
type Look int

// The looks.
const (
	Gray Look = iota
	Blue
	Orange
	Teal
	Purple
	Brown
	Pink
	Green
	Red
	looks // how many there are
)

// palette has for each look its colour on light and on dark paper; each can be
// read as text on its paper.
var palette = [looks]struct{ light, dark, dash string }{
	Gray:   {"#5f6873", "#a3acb7", "2 3"},
	Blue:   {"#0a62ba", "#5fb0ff", ""},
	Orange: {"#b84a00", "#ff9d4d", "7 3"},
	Teal:   {"#0b6e64", "#3fd0bd", "10 3 2 3"},
	Purple: {"#7a3fd0", "#c9a2ff", "4 2"},
	Brown:  {"#7d5700", "#e0b64a", "1 2"},
	Pink:   {"#b0207a", "#ff8ccb", "12 3"},
	Green:  {"#3d6b12", "#9fd65c", "6 2 1 2"},
	Red:    {"#b3261e", "#ff8a80", "3 3"},
}

// paper is what pictures are drawn on, and what is drawn beside the series.
var paper = struct{ light, dark, ink, inkDark, soft, softDark, grid, gridDark string }{
	"#ffffff", "#14181d", "#1c2127", "#e9edf2", "#545d68", "#a9b2bd", "#dfe3e8", "#2f3741",
}

// Style is the style sheet of all pictures of a page.
func Style() string {
	var out strings.Builder
	colours := func(dark bool) string {
		ink, soft, grid, ground := paper.ink, paper.soft, paper.grid, paper.light
		if dark {
			ink, soft, grid, ground = paper.inkDark, paper.softDark, paper.gridDark, paper.dark
		}
		var all strings.Builder
		fmt.Fprintf(&all, "--ink:%s;--soft:%s;--grid:%s;--paper:%s", ink, soft, grid, ground)
		for i, p := range palette {
			c := p.light
			if dark {
				c = p.dark
			}
			fmt.Fprintf(&all, ";--look%d:%s", i, c)
		}
		return all.String()
	}
	fmt.Fprintf(&out, ":root{color-scheme:light dark;%s}\n", colours(false))
	fmt.Fprintf(&out, "@media screen and (prefers-color-scheme:dark){:root{%s}}\n", colours(true))
	out.WriteString(rules)
	for i := range palette {
		fmt.Fprintf(&out, ".plot .look%d{--c:var(--look%d)}\n", i, i)
	}
	return out.String()
}

// rules are the style of every picture, one a line. --c is the colour of the look
// that something is in.
const rules = `.plot{display:block;width:100%;height:auto;font:12.5px system-ui,"DejaVu Sans",sans-serif}
.plot text{fill:var(--soft);paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}
.plot .name{fill:var(--ink)}
.plot .label{font-weight:600;fill:var(--c)}
.plot .grid{stroke:var(--grid);stroke-width:1}
.plot .axis{stroke:var(--soft);stroke-width:1}
.plot .mark{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:5 4}
.plot .line{fill:none;stroke:var(--c);stroke-width:2.2;stroke-linejoin:round}
.plot .thin{stroke-width:1.4}
.plot .band{fill:var(--c);opacity:.16}
.plot .dot{fill:var(--paper);stroke:var(--c);stroke-width:2}
.plot .fill{fill:var(--c)}
.plot .pale{fill:var(--c);fill-opacity:.28;stroke:var(--c);stroke-width:1}
.plot .cell{fill:var(--c)}
.plot .cut{stroke:var(--paper);stroke-width:1.6}
.plot .whisker{stroke:var(--ink);stroke-width:1.2;fill:none}
`

// Alone makes a picture that needs no page: on light paper, with its style in
// it and without variables, which many programs that draw SVG do not know.
func Alone(picture template.HTML) string {
	head, marks, _ := strings.Cut(string(picture), headEnds)
	var style strings.Builder
	known := strings.NewReplacer("var(--ink)", paper.ink, "var(--soft)", paper.soft, "var(--grid)", paper.grid, "var(--paper)", paper.light)
	for rule := range strings.Lines(known.Replace(rules)) {
		if !strings.Contains(rule, "var(--c)") {
			style.WriteString(rule)
			continue
		}
		for i, p := range palette {
			style.WriteString(strings.Replace(strings.ReplaceAll(rule, "var(--c)", p.light), ".plot ", fmt.Sprintf(".plot .look%d ", i), 1))
		}
	}
	return head + headEnds + "<style>\n" + style.String() + "</style>\n" +
		fmt.Sprintf(`<rect width="100%%" height="100%%" fill="%s"/>`, paper.light) + "\n" + marks
}
