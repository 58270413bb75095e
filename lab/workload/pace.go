package workload

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// worker does pieces of work, one after the other.
type worker interface {
	// do does one piece and notes every operation of it, at least one, also those
	// that failed. ctx ends when the piece is given up; it may have ended already.
	do(ctx context.Context, intended time.Time, m *meter) error
	close()
}

// paced is a load of equal workers. make is called once for each of them, with
// its number, and must not wait for anything.
type paced struct {
	Pace
	make func(number int, draw *rand.Rand) worker
}

// grace is how long operations have to end when a load is stopped before its time.
const grace = 5 * time.Second

// afterError is how long a user of a closed loop who met an error waits before
// trying again, so that a dead server does not make a busy loop.
const afterError = 100 * time.Millisecond

var (
	errOver    = errors.New("the load is over")
	errStopped = errors.New("the load was stopped")
	errLate    = errors.New("not done within the timeout")
)

// Run paces the workers and tells what they did.
func (p *paced) Run(ctx context.Context, out func(Interval)) error {
	m := newMeter(p.Mode == closed)
	start := m.start()
	end := start.Add(time.Duration(p.Duration))
	// Arrivals end with the first, operations with the second.
	arrivals, stop := context.WithDeadlineCause(ctx, end, errOver)
	defer stop()
	work, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(errOver)
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
		case <-work.Done():
		}
		abandon(errStopped)
	})()

	var workers sync.WaitGroup
	next := p.schedule(start, end)
	if p.Mode == open {
		m.offered = next.offered
	}
	halted, halt := context.WithCancelCause(context.WithoutCancel(ctx))
	defer halt(errOver)
	defer context.AfterFunc(ctx, func() { next.halt(); halt(errStopped) })()
	for n := range p.Users {
		w := p.make(n, p.draw(uint64(n)+1))
		workers.Go(func() {
			defer w.close()
			if p.Mode == open {
				p.serve(halted, work, w, next, m)
			} else {
				p.use(arrivals, work, w, p.draw(uint64(n)+1+maxUsers), m)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		workers.Wait()
		close(ended)
	}()
	tell(m, time.Duration(p.Interval), ended, out)
	return nil
}

// draw gives the numbers of one stream of chance.
func (p *paced) draw(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(p.Seed, stream)) }

// tell gives the intervals away until the work has ended, and then the last one. Whoever listens
// slowly has a tick waiting at the end too, and no interval more for it.
func tell(m *meter, every time.Duration, ended <-chan struct{}, out func(Interval)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for over := false; !over; out(m.cut()) {
		select {
		case <-tick.C:
		case <-ended:
		}
		over = isClosed(ended)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// serve does arrivals in the order of the schedule. One that finds nobody idle is
// begun late: no list of waiting arrivals is kept, since the schedule knows them.
// All that were meant to start before the end, or before the load was stopped, are
// done or given up, and counted.
func (p *paced) serve(halted, work context.Context, w worker, next *schedule, m *meter) {
	for {
		intended, more := next.take()
		if !more || !until(halted, intended) && !next.has(intended) {
			return
		}
		ctx, cancel := context.WithDeadlineCause(work, intended.Add(time.Duration(p.Timeout)), errLate)
		m.arrived(intended, w.do(ctx, intended, m))
		cancel()
	}
}

// use is one user of a closed loop, who thinks first: users do not come all at once.
func (p *paced) use(arrivals, work context.Context, w worker, draw *rand.Rand, m *meter) {
	var pause time.Duration
	for {
		pause = max(pause, time.Duration(draw.Float64()*2*float64(p.Think)))
		if !until(arrivals, time.Now().Add(pause)) || arrivals.Err() != nil {
			return
		}
		now := time.Now()
		ctx, cancel := context.WithDeadlineCause(work, now.Add(time.Duration(p.Timeout)), errLate)
		pause = 0
		if w.do(ctx, now, m) != nil {
			pause = afterError
		}
		cancel()
	}
}

// until waits for a moment, and reports whether it came before ctx ended.
func until(ctx context.Context, moment time.Time) bool {
	wait := time.Until(moment)
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
