package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// Bounds of the log output.
const (
	maxQueuedLines = 4096        // lines in the queue; further lines are counted as lost
	flushTimeout   = time.Second // how long the daemon's end waits for the queue
	// maxLine bounds a log line in bytes. A journal splits longer lines (systemd: 48 KiB, rsyslog: 8 KiB). The
	// rest would appear as a line of its own, and a client or guest could forge an audit line that way.
	maxLine = 8<<10 - 1
)

// lines writes log lines to standard error in the background. The caller never waits for the reader, nor ends with
// it: guests' loops log too, and a journal may hang, or end.
type lines struct {
	to    io.Writer
	queue chan line
	lost  atomic.Int64
}

type line struct {
	text []byte
	done chan<- struct{} // closed when all earlier lines are written; nil: no one waits
}

// logOutput is the log output of this daemon.
var logOutput = newLines(os.Stderr)

func newLines(to io.Writer) *lines {
	l := &lines{to: to, queue: make(chan line, maxQueuedLines)}
	go l.write()
	return l
}

// surviveBrokenPipe makes a write to a pipe without a reader fail, instead of ending the daemon. SIGPIPE is
// caught, not ignored: child processes would inherit "ignored".
func surviveBrokenPipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// Write never waits and never fails.
func (l *lines) Write(text []byte) (int, error) {
	select {
	case l.queue <- line{text: shortened(text)}:
	default:
		l.lost.Add(1)
	}
	return len(text), nil
}

// shortened returns a copy of a line, or of its beginning.
func shortened(text []byte) []byte {
	if len(text) <= maxLine {
		return bytes.Clone(text)
	}
	const more = "…\n"
	return append(bytes.ToValidUTF8(text[:maxLine-len(more)], nil), more...)
}

func (l *lines) write() {
	for next := range l.queue {
		_, _ = l.to.Write(next.text) // an error cannot be reported anywhere
		if next.done != nil {
			close(next.done)
		}
		if n := l.lost.Swap(0); n > 0 {
			_, _ = fmt.Fprintf(l.to, "time=%s level=WARN msg=\"log lines lost; reader too slow\" lines=%d\n", time.Now().Format(time.RFC3339), n)
		}
	}
}

// flush waits up to flushTimeout until the queue is written.
func (l *lines) flush() {
	done, late := make(chan struct{}), time.After(flushTimeout)
	select {
	case l.queue <- line{done: done}:
	case <-late:
		return
	}
	select {
	case <-done:
	case <-late:
	}
}
