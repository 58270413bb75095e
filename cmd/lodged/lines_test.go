package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A log without a reader blocks nothing, and lost lines are counted.
// Promise: F34
func TestLines_NoReader(t *testing.T) {
	from, to := io.Pipe()
	l := newLines(to)
	begun := time.Now()
	for n := range 3 * maxQueuedLines {
		_, _ = fmt.Fprintf(l, "line %d\n", n)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	var got bytes.Buffer
	taken := make(chan struct{})
	go func() {
		_, _ = io.Copy(&got, from)
		close(taken)
	}()
	l.flush()
	_ = to.Close()
	<-taken
	for _, want := range []string{"line 0\n", "line 1\n", "lines lost", fmt.Sprintf("line %d\n", maxQueuedLines-1)} {
		if !bytes.Contains(got.Bytes(), []byte(want)) {
			t.Errorf("it lacks %q", want)
		}
	}
}

// The daemon outlives the reader of its log.
// Promise: F34
func TestLines_ReaderEnds(t *testing.T) {
	if os.Getenv("LODGED_SPEAKS") != "" {
		surviveBrokenPipe()
		for range 3 {
			_, _ = fmt.Fprintln(logOutput, "words")
			logOutput.flush()
		}
		os.Exit(7)
	}
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = from.Close() // the pipe has no reader
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLines_ReaderEnds$")
	c.Env, c.Stderr = append(os.Environ(), "LODGED_SPEAKS=yes"), to
	if err := c.Run(); c.ProcessState.ExitCode() != 7 {
		t.Errorf("it ended so: %v", err)
	}
	_ = to.Close()
}

// The journal would make a line of its own from the rest of a long line, such as a forged
// audit line.
// Promise: A5
func TestLines_LongLine(t *testing.T) {
	from, to := io.Pipe()
	l := newLines(to)
	_, _ = fmt.Fprintf(l, "level=WARN msg=%sé level=INFO msg=audit\n", strings.Repeat("é", maxLine/2))
	_, _ = fmt.Fprintln(l, "level=INFO msg=next")
	lines := bufio.NewScanner(from)
	for _, want := range []string{"level=WARN msg=éé", "level=INFO msg=next"} {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Errorf("got %.40q, want %q", lines.Text(), want)
		}
		if got := lines.Text(); len(got) >= maxLine || !utf8.ValidString(got) || strings.Contains(got, "audit") {
			t.Errorf("a line has %d bytes and ends with %q", len(got), got[max(0, len(got)-40):])
		}
	}
	_ = to.Close()
}
