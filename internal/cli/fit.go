package cli

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// The least widths, in characters, to which fit shortens cells: of the first column, which
// names the row, and of the others.
const (
	leastName = 24
	leastCell = 12
)

// fit makes lines of at most width characters, as far as it can; a width of 0 has no bound.
// It leaves out columns without any value, shortens the long cells of columns that are flush
// left, and then leaves out the columns with the titles in spare, in that order.
func (t *table) fit(width int, spare ...string) {
	if width == 0 || t.width() <= width {
		return
	}
	t.keep(func(i int) bool {
		return i == 0 || slices.ContainsFunc(t.rows, func(row []string) bool { return row[i] != none })
	})
	for t.least() > width && len(spare) > 0 {
		t.keep(func(i int) bool { return strings.TrimSuffix(t.titles[i], " ") != spare[0] })
		spare = spare[1:]
	}
	t.shorten(width)
}

// columns gives the width of each column, with its title.
func (t *table) columns() []int {
	widths := make([]int, len(t.titles))
	for _, row := range append([][]string{t.titles}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(Clean(strings.TrimSuffix(cell, " "))))
		}
	}
	return widths
}

// width is that of the table's longest line.
func (t *table) width() int { return lineWidth(t.columns()) }

// least is the width to which shorten can bring the table.
func (t *table) least() int {
	widths := t.columns()
	for i := range widths {
		widths[i] = min(widths[i], t.leastOf(i, widths[i]))
	}
	return lineWidth(widths)
}

// lineWidth adds the gaps of two spaces between columns.
func lineWidth(widths []int) int {
	sum := 2 * (len(widths) - 1)
	for _, w := range widths {
		sum += w
	}
	return sum
}

// leastOf is how narrow a column of this width may become. Numbers, which are flush right, stay whole.
func (t *table) leastOf(column, width int) int {
	switch {
	case strings.HasSuffix(t.titles[column], " "):
		return width
	case column == 0:
		return leastName
	}
	return max(leastCell, utf8.RuneCountInString(t.titles[column]))
}

// shorten cuts the widest columns until lines fit, or none can be cut further.
func (t *table) shorten(width int) {
	widths := t.columns()
	for over := lineWidth(widths) - width; over > 0; over-- {
		widest := -1
		for i, w := range widths {
			if w > t.leastOf(i, w) && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	for _, row := range t.rows {
		for i := range row {
			row[i] = abbreviate(Clean(row[i]), widths[i])
		}
	}
}

// abbreviate gives the first characters of a text, with a mark where some are left out.
func abbreviate(text string, width int) string {
	letters := []rune(text)
	if len(letters) <= width {
		return text
	}
	return string(letters[:max(width-1, 0)]) + "…"
}

// keep leaves out the columns for which it is false.
func (t *table) keep(which func(column int) bool) {
	kept := make([]bool, len(t.titles))
	for i := range kept {
		kept[i] = which(i)
	}
	filter := func(cells []string) []string {
		var left []string
		for i, cell := range cells {
			if kept[i] {
				left = append(left, cell)
			}
		}
		return left
	}
	for i, row := range t.rows {
		t.rows[i] = filter(row)
	}
	t.titles = filter(t.titles)
}
