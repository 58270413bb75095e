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

// Bounds of what is said.
const (
	linesWaiting = 4096        // lines that wait to be taken; more are counted as lost
	linesLast    = time.Second // how long the daemon's end waits for those
	// longestLine is how many bytes of a line are said. A journal takes some (48 KiB, systemd's; rsyslog's 8 KiB) for
	// a line, and what is behind that for another one, which a client or a guest could have written as of an audit.
	longestLine = 8<<10 - 1
)

// lines brings what is said to standard error. Nobody waits for who reads there, nor dies with it:
// guests' loops say things too, and a journal may hang, or end.
type lines struct {
	to    io.Writer
	queue chan line
	lost  atomic.Int64
}

type line struct {
	text []byte
	done chan<- struct{} // closed when all before is written; nil: nobody waits
}

// said is what this daemon says.
var said = newLines(os.Stderr)

func newLines(to io.Writer) *lines {
	l := &lines{to: to, queue: make(chan line, linesWaiting)}
	go l.write()
	return l
}

// outliveReader has a write to a pipe that nobody reads fail, and not end the daemon. It is
// handled rather than ignored: what the daemon starts would ignore it too.
func outliveReader() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// Write never waits and never fails.
func (l *lines) Write(text []byte) (int, error) {
	select {
	case l.queue <- line{text: shortened(text)}:
	default:
		l.lost.Add(1)
	}
	return len(text), nil
}

// shortened is a copy of a line, or of its beginning.
func shortened(text []byte) []byte {
	if len(text) <= longestLine {
		return bytes.Clone(text)
	}
	const more = "…\n"
	return append(bytes.ToValidUTF8(text[:longestLine-len(more)], nil), more...)
}

func (l *lines) write() {
	for next := range l.queue {
		_, _ = l.to.Write(next.text) // there is nobody to tell
		if next.done != nil {
			close(next.done)
		}
		if n := l.lost.Swap(0); n > 0 {
			_, _ = fmt.Fprintf(l.to, "time=%s level=WARN msg=\"lines are lost that nobody took in time\" lines=%d\n", time.Now().Format(time.RFC3339), n)
		}
	}
}

// flush waits, not for long, until what was said is written.
func (l *lines) flush() {
	done, late := make(chan struct{}), time.After(linesLast)
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
