package workload

import (
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/lab/histogram"
)

// meter counts what the workers of a load do, and gives it away by intervals.
type meter struct {
	closed bool // latency and service are the same

	mu    sync.Mutex
	start time.Time // of the interval that is being counted
	ops   map[string]*Count
}

func newMeter(closed bool) *meter {
	return &meter{closed: closed, start: time.Now(), ops: map[string]*Count{}}
}

// done counts an operation that ended well just now.
func (m *meter) done(op string, intended, started time.Time, bytes int64) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.count(op)
	c.Done++
	c.Bytes += bytes
	if c.Latency == nil {
		c.Latency = histogram.New()
	}
	histogram.Record(c.Latency, now.Sub(intended))
	if m.closed {
		return
	}
	if c.Service == nil {
		c.Service = histogram.New()
	}
	histogram.Record(c.Service, now.Sub(started))
}

// untimed counts what is not timed one by one.
func (m *meter) untimed(op string, done int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count(op).Done += done
}

// wrote counts a write that is not timed.
func (m *meter) wrote(op string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.count(op)
	c.Done++
	c.Bytes += bytes
}

// wrong counts errors of which one says all.
func (m *meter) wrong(op string, n int64, what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.count(op)
	c.Errors += n
	if c.Example == "" {
		c.Example = clip(what)
	}
}

func (m *meter) failed(op string, err error) { m.wrong(op, 1, err.Error()) }

// note counts an operation by how it ended.
func (m *meter) note(op string, intended, started time.Time, bytes int64, err error) {
	if err != nil {
		m.failed(op, err)
		return
	}
	m.done(op, intended, started, bytes)
}

func (m *meter) count(op string) *Count {
	c := m.ops[op]
	if c == nil {
		c = &Count{}
		m.ops[op] = c
	}
	return c
}

// cut ends the interval and begins the next.
func (m *meter) cut() Interval {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	i := Interval{Start: m.start, Length: now.Sub(m.start), Ops: make(map[string]Count, len(m.ops))}
	for op, c := range m.ops {
		i.Ops[op] = *c
	}
	m.start, m.ops = now, map[string]*Count{}
	return i
}
