package qmp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// MaxLine bounds one line from QEMU, in bytes. Answers about hundreds of
// processors or a long backing chain are megabytes; the schema alone is 200 KiB.
const MaxLine = 64 << 20

var errLineTooLong = fmt.Errorf("QEMU sent a line of more than %d MiB", MaxLine>>20)

// Greeting is QEMU's first message.
type Greeting struct {
	Version      Version  `json:"version"`
	Capabilities []string `json:"capabilities"`
}

// Version is QEMU's own version and that of the package it came in.
type Version struct {
	QEMU struct {
		Major int `json:"major"`
		Minor int `json:"minor"`
		Micro int `json:"micro"`
	} `json:"qemu"`
	Package string `json:"package"`
}

// message is any line that QEMU may send.
type message struct {
	Greeting *Greeting       `json:"QMP"`
	ID       json.RawMessage `json:"id"`
	Return   json.RawMessage `json:"return"`
	Error    *Error          `json:"error"`

	Event     string          `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp struct {
		Seconds      int64 `json:"seconds"` // -1 when QEMU could not read its clock
		Microseconds int64 `json:"microseconds"`
	} `json:"timestamp"`
}

// decode parses one line. A line that is no greeting, answer, error or event is an error, because nothing after it can
// be trusted.
func decode(line []byte) (*message, error) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, fmt.Errorf("QEMU sent a line that is no QMP message (%s): %w", excerpt(line), err)
	}
	if m.Greeting == nil && m.Return == nil && m.Error == nil && m.Event == "" {
		return nil, fmt.Errorf("QEMU sent a line that is no QMP message: %s", excerpt(line))
	}
	return &m, nil
}

// encode makes the line of a command. A nil value of any type means no arguments.
func encode(command string, args any, id uint64) ([]byte, error) {
	encoded, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	if string(encoded) == "null" {
		encoded = nil
	}
	line, err := json.Marshal(struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments,omitempty"`
		ID        uint64          `json:"id"`
	}{command, encoded, id})
	return append(line, '\n'), err
}

// isNoncharacter reports whether a code point is a Unicode noncharacter: QEMU's parser refuses strings with one.
func isNoncharacter(r rune) bool { return r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe }

// commandID returns the id of the command that the message answers.
func (m *message) commandID() (id uint64, ok bool) {
	id, err := strconv.ParseUint(string(m.ID), 10, 64)
	return id, err == nil
}

func (m *message) time() time.Time {
	if m.Timestamp.Seconds < 0 {
		return time.Time{}
	}
	return time.Unix(m.Timestamp.Seconds, m.Timestamp.Microseconds*int64(time.Microsecond))
}

// excerpt returns the beginning of a hostile line, quoted, for an error.
func excerpt(line []byte) string {
	const show = 80
	if len(line) > show {
		return strconv.Quote(string(line[:show])) + "…"
	}
	return strconv.Quote(string(line))
}

// lineReader reads lines of up to limit bytes. A line is valid until the next
// call; the memory of a long line is released with the next one.
type lineReader struct {
	in    *bufio.Reader
	long  []byte
	limit int
	pace  pace
	stop  <-chan struct{} // closed: a pause ends
}

func newLineReader(r io.Reader, limit int, stop <-chan struct{}) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(r, 4<<10), limit: limit, pace: newPace(readBurst, readRate), stop: stop}
}

// next returns the next line that is not empty, without its end, and pauses if the
// lines come too fast. For a last line that the end of the stream cut off the error is
// io.ErrUnexpectedEOF.
func (l *lineReader) next() ([]byte, error) {
	for {
		line, err := l.readLine()
		if err != nil {
			return nil, err
		}
		l.pace.wait(1+len(line)>>10, l.stop)
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}

func (l *lineReader) readLine() ([]byte, error) {
	l.long = nil
	for {
		part, err := l.in.ReadSlice('\n')
		if len(l.long)+len(part) > l.limit {
			return nil, errLineTooLong
		}
		switch {
		case err == nil && l.long == nil:
			return part, nil
		case err == nil:
			return append(l.long, part...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			l.long = append(l.long, part...)
		case errors.Is(err, io.EOF) && len(l.long)+len(part) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
