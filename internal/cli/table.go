package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table lays out rows in columns. A title that ends with a space makes its
// column flush right.
type table struct {
	titles []string
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// lines gives the table's lines, its titles first.
func (t *table) lines() []string {
	widths := make([]int, len(t.titles))
	titles := make([]string, len(t.titles))
	for i, title := range t.titles {
		titles[i] = Clean(strings.TrimSuffix(title, " "))
		widths[i] = utf8.RuneCountInString(titles[i])
	}
	for _, row := range t.rows {
		for i := range row {
			row[i] = Clean(row[i])
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	lines := make([]string, 0, len(t.rows)+1)
	for _, row := range append([][]string{titles}, t.rows...) {
		var line strings.Builder
		for i, cell := range row {
			fill := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if strings.HasSuffix(t.titles[i], " ") {
				cell = fill + cell
			} else {
				cell += fill
			}
			if i > 0 {
				line.WriteString("  ")
			}
			line.WriteString(cell)
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return lines
}

func (t *table) write(w io.Writer) error {
	_, err := fmt.Fprintln(w, strings.Join(t.lines(), "\n"))
	return err
}
