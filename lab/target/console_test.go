package target

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Promise: L21
func TestTheEndOfAConsole(t *testing.T) {
	g := &Guest{at: &Target{}, console: filepath.Join(t.TempDir(), "x.console")}
	if got := g.Console(t.Context()); len(got) != 0 {
		t.Errorf("one that is not there says %q", got)
	}
	if err := g.openConsole(t.Context()); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&text, "[%5d.0] a line\r\n\r\n", i)
	}
	text.WriteString("\x1b]0;owned\a\x1b[2JKernel panic - not syncing: \x9b31mno init\xff\n" + strings.Repeat("x", 100_000))
	if err := os.WriteFile(g.console, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	got := g.Console(t.Context())
	if len(got) != 1 || len(got[0]) != lastBytes {
		t.Errorf("of an endless line %d lines are kept", len(got))
	}
	short, _, _ := strings.Cut(text.String(), "xxxx")
	if err := os.WriteFile(g.console, []byte(short), 0o644); err != nil {
		t.Fatal(err)
	}
	got = g.Console(t.Context())
	if len(got) != lastLines || got[0] != "[ 9993.0] a line" || got[7] != "]0;owned[2JKernel panic - not syncing: 31mno init" {
		t.Errorf("the last words are %q", got)
	}
}
