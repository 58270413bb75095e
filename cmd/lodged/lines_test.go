package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// A log that nobody takes holds nobody up, and what is lost of it is counted.
func TestALogThatNobodyTakesHoldsNobodyUp(t *testing.T) {
	from, to := io.Pipe()
	l := newLines(to)
	begun := time.Now()
	for n := range 3 * linesWaiting {
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
	for _, want := range []string{"line 0\n", "line 1\n", "are lost", fmt.Sprintf("line %d\n", linesWaiting-1)} {
		if !bytes.Contains(got.Bytes(), []byte(want)) {
			t.Errorf("it lacks %q", want)
		}
	}
}

// A reader of the log that ends does not take the daemon along.
func TestAReaderThatEndsDoesNotEndTheDaemon(t *testing.T) {
	if os.Getenv("LODGED_SPEAKS") != "" {
		outliveReader()
		for range 3 {
			_, _ = fmt.Fprintln(said, "words")
			said.flush()
		}
		os.Exit(7)
	}
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = from.Close() // there is nobody
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAReaderThatEndsDoesNotEndTheDaemon$")
	c.Env, c.Stderr = append(os.Environ(), "LODGED_SPEAKS=yes"), to
	if err := c.Run(); c.ProcessState.ExitCode() != 7 {
		t.Errorf("it ended so: %v", err)
	}
	_ = to.Close()
}
