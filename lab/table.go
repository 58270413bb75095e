package lab

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Table is figures in rows. The first column is words, the others are numbers.
type Table struct {
	Title string
	Head  []string
	Rows  [][]string
}

// Text draws the table for a terminal.
func (t Table) Text() string {
	widths := t.widths()
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n\n", t.Title)
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		var text strings.Builder
		for i, cell := range row {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				text.WriteString(cell + gap)
				continue
			}
			text.WriteString("  " + gap + cell)
		}
		out.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
	return out.String()
}

func (t Table) widths() []int {
	widths := make([]int, len(t.Head))
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// Markdown draws the table for a page.
func (t Table) Markdown() string {
	var out strings.Builder
	fmt.Fprintf(&out, "### %s\n\n", Inline(t.Title))
	row := func(cells []string) {
		out.WriteString("|")
		for _, cell := range cells {
			fmt.Fprintf(&out, " %s |", Inline(cell))
		}
		out.WriteString("\n")
	}
	row(t.Head)
	out.WriteString("|---|" + strings.Repeat("---:|", len(t.Head)-1) + "\n")
	for _, cells := range t.Rows {
		row(cells)
	}
	return out.String()
}

var inline = strings.NewReplacer("|", `\|`, "<", "&lt;", "\r", " ", "\n", " ")

// Inline makes a daemon's words a part of one line of Markdown: they end no line,
// no cell and no mark of a page, and begin no element.
func Inline(words string) string { return inline.Replace(words) }
