package bulk

import (
	"bytes"
	"maps"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
)

// Status is how often fio is asked to tell what it has done so far.
const Status = time.Second

// Stretch is what a job did in a part of its time.
type Stretch struct {
	Start  time.Time
	Length time.Duration
	Result
}

// Course makes stretches of what fio says while it says it: one document after the
// other, each with the sums since the job began, and at last those that are to be
// trusted. A stretch is what two of them differ by; the stretches of a job add up to
// its last document, to the last request. A Course is an io.Writer for fio's output,
// which may be hostile: what does not fit together is refused by Write, and Err.
type Course struct {
	tell func(Stretch)
	most int // documents that there can be
	seen int

	line   []byte // that has not ended yet
	text   []byte // of the document that is being read, or was the last
	inside bool
	err    error

	began      time.Time // when the job did; zero until it has
	told, next sums      // up to where stretches were told, and what was read beyond
	behind     bool      // there is something in next
}

// sums are those of a document.
type sums struct {
	read, write part
	runtime     time.Duration
}

// part is one direction of sums.
type part struct {
	bytes    int64
	requests map[time.Duration]int64 // by latency
}

// NewCourse makes one of a job that lasts so long at most, its files' laying out
// among it. tell is called by whoever writes, and by End.
func NewCourse(longest time.Duration, tell func(Stretch)) *Course {
	const slack = 60
	return &Course{tell: tell, most: slack + int(min(longest, 1<<60)/Status)}
}

// Err says why something that was written was refused.
func (c *Course) Err() error { return c.err }

// Write takes more of fio's output. Documents are what lies between a line with an
// opening brace alone and one with a closing one; what is not in them is notes for
// the user.
func (c *Course) Write(p []byte) (int, error) {
	for rest := p; c.err == nil && len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		c.line, rest = append(c.line, part...), after
		if len(c.line)+len(c.text) > MaxOutput {
			c.err = fault.New(fault.Invalid, fault.Host, "fio said more than %d bytes at once", MaxOutput)
		} else if ended {
			c.err = c.take(c.line)
			c.line = c.line[:0]
		}
	}
	if c.err != nil {
		return 0, c.err
	}
	return len(p), nil
}

// take reads one line.
func (c *Course) take(line []byte) error {
	if string(line) == "{" {
		c.inside, c.text = true, c.text[:0]
	}
	if !c.inside {
		return nil
	}
	c.text = append(append(c.text, line...), '\n')
	if string(line) != "}" {
		return nil
	}
	c.inside = false
	if c.seen++; c.seen > c.most {
		return fault.New(fault.Invalid, fault.Host, "fio told more than %d times what it had done", c.most)
	}
	read, write, err := decode(c.text)
	if fault.Is(err, fault.Failed) {
		return nil // fio says more of it, and End says that it did
	}
	if err != nil {
		return err
	}
	return c.document(read, write)
}

// document takes in the sums of one. What a document adds is told when the next one
// has come, so that the little that is left at the end joins what was before it.
func (c *Course) document(read, write side) (err error) {
	var now sums
	if now.read, err = read.part(); err == nil {
		now.write, err = write.part()
	}
	now.runtime = read.length(write)
	switch {
	case err != nil:
		return err
	case now.runtime == 0 && c.began.IsZero():
		return nil // nothing has begun
	case now.runtime == 0:
		return fault.New(fault.Invalid, fault.Host, "a job that has begun cannot have gone on for no time")
	}
	if c.began.IsZero() {
		c.began = time.Now().Add(-now.runtime)
	}
	if c.behind && now.runtime-c.next.runtime >= Status/2 {
		if err := c.stretch(); err != nil {
			return err
		}
	}
	c.next, c.behind = now, true
	return nil
}

// End reads the last document to the last request and tells the rest.
func (c *Course) End() error {
	if c.err != nil {
		return c.err
	}
	if len(c.line) > 0 { // a last line without its end
		if c.err = c.take(c.line); c.err != nil {
			return c.err
		}
	}
	if c.inside || len(c.text) == 0 {
		return fault.New(fault.Invalid, fault.Host, "fio gave no result: %.300q", c.text)
	}
	if _, err := Parse(c.text); err != nil || !c.behind {
		return err
	}
	return c.stretch()
}

// stretch tells what lies between what was told and what was read.
func (c *Course) stretch() error {
	s := Stretch{Start: c.began.Add(c.told.runtime), Length: max(0, c.next.runtime-c.told.runtime)}
	var err error
	if s.Read, err = c.next.read.less(c.told.read, s.Length); err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "fio's reads")
	}
	if s.Write, err = c.next.write.less(c.told.write, s.Length); err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "fio's writes")
	}
	c.next.runtime = max(c.next.runtime, c.told.runtime)
	c.told, c.behind = c.next, false
	c.tell(s)
	return nil
}

// part sums a direction up. While fio works its threads count on as it tells: only
// the last document is held to be consistent.
func (s side) part() (part, error) {
	requests, _, err := s.requests()
	return part{s.IOBytes, requests}, err
}

// less is what one direction did beyond earlier sums. Sums only grow.
func (p part) less(before part, length time.Duration) (Side, error) {
	done := Side{Bytes: p.bytes - before.bytes, Runtime: length}
	if done.Bytes < 0 {
		return Side{}, fault.New(fault.Invalid, fault.Host, "%d bytes after %d cannot be", p.bytes, before.bytes)
	}
	left := maps.Clone(before.requests)
	times := histogram.New()
	for latency, n := range p.requests {
		n -= left[latency]
		delete(left, latency)
		if n < 0 {
			return Side{}, fault.New(fault.Invalid, fault.Host, "fewer requests of %v than before cannot be", latency)
		}
		done.Requests += n
		histogram.RecordMany(times, latency, n)
	}
	if len(left) > 0 {
		return Side{}, fault.New(fault.Invalid, fault.Host, "%d kinds of latency are gone again", len(left))
	}
	if done.Requests > 0 {
		done.Latency = times
	}
	return done, nil
}
