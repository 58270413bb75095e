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
	rate  float64    // a second
	draw  *rand.Rand // nil if even

	mu     sync.Mutex
	end    time.Time
	number float64 // of arrivals taken, if even
	offset float64 // in s of the last arrival, if not
}

func (p *paced) schedule(start, end time.Time) *schedule {
	s := &schedule{start: start, end: end, rate: p.Rate}
	if p.Arrivals == poisson {
		s.draw = p.draw(0)
	}
	return s
}

// take gives the next arrival, or false when there are no more before the end.
func (s *schedule) take() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var seconds float64
	if s.draw != nil {
		s.offset += s.draw.ExpFloat64() / s.rate
		seconds = s.offset
	} else {
		seconds = s.number / s.rate // no error adds up
		s.number++
	}
	if seconds >= s.end.Sub(s.start).Seconds() {
		return time.Time{}, false
	}
	return s.start.Add(time.Duration(seconds * float64(time.Second))), true
}

// halt ends the schedule now.
func (s *schedule) halt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Before(s.end) {
		s.end = now
	}
}
