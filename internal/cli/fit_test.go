package cli

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// A table is not wider than its terminal, as long as its numbers and its first column leave room.
func TestTable_FitsTerminal(t *testing.T) {
	made := func() *table {
		t := &table{titles: []string{"NAME", "MEMORY ", "TILE", "UUID", "ISOLATION", "MESSAGES"}}
		t.add("web-1", "192.0M", none, "97da8a53-8a83-4c40-b1fe-2edd89a79e8a", "user,root,network", "tainted: shares a MAC address with web-2")
		t.add("a-guest-with-a-name-that-is-long-enough", "2.0G", none, "97da8a53-8a83-4c40-b1fe-2edd89a79e8b", "user,root,network", none)
		return t
	}
	for _, width := range []int{40, 60, 80, 100, 120, 400} {
		table := made()
		table.fit(width, "ISOLATION", "UUID", "MESSAGES")
		for _, line := range table.lines() {
			if n := utf8.RuneCountInString(line); n > width {
				t.Errorf("at %d a line has %d: %s", width, n, line)
			}
		}
	}
	narrow, whole := made(), made()
	narrow.fit(80, "ISOLATION", "UUID")
	if want := []string{"NAME", "MEMORY ", "UUID", "ISOLATION", "MESSAGES"}; !slices.Equal(narrow.titles, want) {
		t.Errorf("columns are %q", narrow.titles)
	}
	if lines := narrow.lines(); !strings.Contains(lines[1], "…") || !strings.Contains(lines[1], "192.0M") {
		t.Errorf("%s", strings.Join(lines, "\n"))
	}
	whole.fit(0, "UUID")
	if got, want := strings.Join(whole.lines(), "\n"), strings.Join(made().lines(), "\n"); got != want {
		t.Errorf("without a terminal:\n%s\nnot\n%s", got, want)
	}
}
