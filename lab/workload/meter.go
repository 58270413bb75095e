package workload

import (
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/lab/histogram"
)

// meter counts what the workers of a load do, and gives it away by intervals. It
// counts an operation in the interval in which it was meant to begin: a backlog that
// is worked off later stays with the time that made it.
type meter struct {
	closed  bool                        // latency and service are the same
	offered func(until time.Time) int64 // arrivals of the schedule so far; nil of closed loops

	mu     sync.Mutex
	told   int64     // of those that are offered
	recent []*recent // rising; the last is being counted
}

// recent is an interval, with what was counted for it since the last cut.
type recent struct {
	start  time.Time
	length time.Duration // once it is over
	ops    map[string]*Count
	Arrivals
}

func newMeter(closed bool) *meter {
	m := &meter{closed: closed}
	m.begin(time.Now())
	return m
}

// start is when the first interval began.
func (m *meter) start() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.recent[0].start
}

// begin forgets intervals that are older than any operation can be: a pace bounds its
// timeout by them.
func (m *meter) begin(now time.Time) {
	if len(m.recent) > MaxLate {
		m.recent = m.recent[1:]
	}
	m.recent = append(m.recent, &recent{start: now})
}

// at finds the interval of a moment; with the lock held. The moment in which one ends
// and the next begins is of the first, as it is in what is offered.
func (m *meter) at(moment time.Time) *recent {
	n := len(m.recent) - 1
	for n > 0 && !moment.After(m.recent[n].start) {
		n--
	}
	return m.recent[n]
}

func (m *meter) now() *recent { return m.recent[len(m.recent)-1] }

// done counts an operation that ended well just now.
func (m *meter) done(op string, intended, started time.Time, bytes int64) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.at(intended).count(op)
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
	m.now().count(op).Done += done
}

// wrote counts a write that is not timed.
func (m *meter) wrote(op string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.now().count(op)
	c.Done++
	c.Bytes += bytes
}

// wrong counts errors of which one says all.
func (m *meter) wrong(op string, n int64, what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now().wrong(op, n, what)
}

// failed counts an operation that ended with an error.
func (m *meter) failed(op string, intended time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at(intended).wrong(op, 1, err.Error())
}

// note counts an operation by how it ended.
func (m *meter) note(op string, intended, started time.Time, bytes int64, err error) {
	if err != nil {
		m.failed(op, intended, err)
		return
	}
	m.done(op, intended, started, bytes)
}

// arrived counts an arrival that has come to its end.
func (m *meter) arrived(intended time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.at(intended); err != nil {
		r.Failed++
	} else {
		r.Served++
	}
}

// cut ends the interval and begins the next.
func (m *meter) cut() Interval {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	current := m.now()
	current.length = now.Sub(current.start)
	if m.offered != nil {
		all := m.offered(now)
		current.Offered, m.told = all-m.told, all
	}
	i := current.take()
	for _, r := range m.recent[:len(m.recent)-1] {
		if len(r.ops) > 0 || r.Open() {
			i.Late = append(i.Late, r.take())
		}
	}
	m.begin(now)
	return i
}

func (r *recent) count(op string) *Count {
	if r.ops == nil {
		r.ops = map[string]*Count{}
	}
	c := r.ops[op]
	if c == nil {
		c = &Count{}
		r.ops[op] = c
	}
	return c
}

func (r *recent) wrong(op string, n int64, what string) {
	c := r.count(op)
	c.Errors += n
	if c.Example == "" {
		c.Example = clip(what)
	}
}

// take gives away what was counted.
func (r *recent) take() Interval {
	i := Interval{Start: r.start, Length: r.length, Ops: make(map[string]Count, len(r.ops)), Arrivals: r.Arrivals}
	for op, c := range r.ops {
		i.Ops[op] = *c
	}
	r.ops, r.Arrivals = nil, Arrivals{}
	return i
}
