package workload

import (
	"math/rand/v2"
	"sync"
	"time"
)

// schedule is when the arrivals of an open loop are meant to start: known
// beforehand, whatever the server does.
type schedule struct {
	start time.Time

	mu     sync.Mutex
	end    time.Time
	given  arrivals // taken by workers
	passed arrivals // the same ones, as time goes by: counted whether or not anybody takes them
	next   time.Time
	number int64 // that have passed
}

// arrivals are drawn one after the other.
type arrivals struct {
	start  time.Time
	rate   float64    // a second
	draw   *rand.Rand // nil if even
	number float64    // of those taken, if even
	offset float64    // in s of the last, if not
}

func (p *paced) schedule(start, end time.Time) *schedule {
	s := &schedule{start: start, end: end, given: p.arrivals(start), passed: p.arrivals(start)}
	s.next = s.passed.take()
	return s
}

func (p *paced) arrivals(start time.Time) arrivals {
	a := arrivals{start: start, rate: p.Rate}
	if p.Arrivals == poisson {
		a.draw = p.draw(0)
	}
	return a
}

func (a *arrivals) take() time.Time {
	var seconds float64
	if a.draw != nil {
		a.offset += a.draw.ExpFloat64() / a.rate
		seconds = a.offset
	} else {
		seconds = a.number / a.rate // no error adds up
		a.number++
	}
	return a.start.Add(time.Duration(seconds * float64(time.Second)))
}

// take gives the next arrival, or false when there are no more before the end.
func (s *schedule) take() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.given.take()
	return at, at.Before(s.end)
}

// offered counts the arrivals up to a moment. Moments must not go back.
func (s *schedule) offered(until time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.next.After(until) && s.next.Before(s.end) {
		s.number++
		s.next = s.passed.take()
	}
	return s.number
}

// has tells whether an arrival is one of the schedule, which may have been halted.
func (s *schedule) has(arrival time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return arrival.Before(s.end)
}

// halt ends the schedule now.
func (s *schedule) halt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Before(s.end) {
		s.end = now
	}
}
