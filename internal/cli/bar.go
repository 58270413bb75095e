package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// bar is the line at the foot of a terminal that shows how far a set has come.
// Without a terminal it is silent.
type bar struct {
	to    io.Writer
	width int // of the terminal; 0: there is none
	began time.Time

	total, ended, failed int
	note                 string // shown after the figures, such as "cancelled"
	shown                bool
}

// text gives the line, no wider than the terminal.
func (b *bar) text(now time.Time) string {
	figures := fmt.Sprintf(" %d", b.ended)
	if b.total > 0 { // unknown for the tiles that a glob selects
		figures += fmt.Sprintf("/%d", b.total)
	}
	if b.failed > 0 {
		figures += fmt.Sprintf(", %d failed", b.failed)
	}
	figures += "  " + span(now.Sub(b.began).Round(100*time.Millisecond))
	if b.note != "" {
		figures += "  " + b.note
	}
	room := min(b.width-utf8.RuneCountInString(figures)-3, 40)
	if room < 5 {
		return cut(strings.TrimSpace(figures), b.width-1)
	}
	full := 0
	if b.total > 0 {
		full = min(room*b.ended/b.total, room) // whatever a daemon says
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", room-full) + "]" + figures
}

// cut shortens a line to so many characters.
func cut(line string, width int) string {
	if runes := []rune(line); len(runes) > max(width, 0) {
		return string(runes[:max(width, 0)])
	}
	return line
}

func (b *bar) draw() {
	if b.width == 0 {
		return
	}
	fmt.Fprint(b.to, "\r\x1b[K", b.text(time.Now()))
	b.shown = true
}

// clear makes room for a line of text.
func (b *bar) clear() {
	if b.shown {
		fmt.Fprint(b.to, "\r\x1b[K")
		b.shown = false
	}
}
