package volume

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Bounds of a lane. A file system that does not answer for as long as patience
// makes its pool stale; a request is given up when nothing has got on for answerTime. What
// gets on, as the reading of a folder with thousands of volumes does, is waited for up to longTime.
const (
	laneDepth  = 64
	patience   = 2 * time.Second
	answerTime = 30 * time.Second
	longTime   = 10 * time.Minute
	freshTime  = time.Second // that a reader gives a pool to bring its view up to date
)

// lane does the short work on one pool's file system, one task after another
// in a goroutine of its own. System calls on a file system cannot be ended, so
// a lane may be stuck; then its callers are let go and its age shows it.
type lane struct {
	tasks chan *task
	// busy is since when the present task has made no progress; nil: there is none.
	busy atomic.Pointer[time.Time]
	quit chan struct{}
	done chan struct{}
	once sync.Once
}

type task struct {
	ctx  context.Context // of the caller, until he waits no more
	work func()
	done chan struct{}
}

func newLane() *lane {
	l := &lane{tasks: make(chan *task, laneDepth), quit: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

func (l *lane) run() {
	defer close(l.done)
	for {
		select {
		case t := <-l.tasks:
			if t.ctx.Err() != nil {
				continue // its caller has gone
			}
			l.beat()
			t.work()
			l.busy.Store(nil)
			close(t.done)
		case <-l.quit:
			return
		}
	}
}

// beat tells that the present task gets on. The task itself calls it.
func (l *lane) beat() {
	now := time.Now()
	l.busy.Store(&now)
}

// stuck says for how long the file system has not answered.
func (l *lane) stuck() time.Duration {
	since := l.busy.Load()
	if since == nil {
		return 0
	}
	return time.Since(*since)
}

// stop lets the goroutine end after its present task.
func (l *lane) stop() { l.once.Do(func() { close(l.quit) }) }

// contained does work on a pool whose bugs must cost its caller alone.
func contained[T any](work func() (T, error)) (value T, err error) {
	defer func() {
		if bug := recover(); bug != nil {
			err = fault.New(fault.Internal, fault.Pool, "work on the pool's storage broke: %v", bug)
		}
	}()
	return work()
}

// ask has a lane do work and waits for its answer, for as long as it or what
// comes before it gets on within a limit. An answer
// that comes when nobody waits any more is handed to discard, which may be
// nil; work that was not begun by then is never begun.
func ask[T any](ctx context.Context, l *lane, limit time.Duration, work func() (T, error), discard func(T)) (T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		none, answer T
		failure      error
		settled      atomic.Bool // by the one who comes first: the answer, or the end of waiting
	)
	t := &task{ctx: ctx, done: make(chan struct{})}
	t.work = func() {
		value, err := contained(work)
		switch {
		case settled.CompareAndSwap(false, true):
			answer, failure = value, err
		case err == nil && discard != nil:
			discard(value)
		}
	}
	select {
	case l.tasks <- t:
	default:
		return none, fault.New(fault.Busy, fault.Pool, "%d requests already wait for the pool's file system", laneDepth)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for began := time.Now(); ; {
		select {
		case <-t.done:
			return answer, failure
		case <-timer.C:
			if rest := limit - l.stuck(); rest > 0 && time.Since(began) < longTime {
				timer.Reset(rest)
				continue
			}
			cancel(fault.New(fault.Timeout, fault.Pool, "the pool's file system did not answer within %v", limit))
		case <-ctx.Done():
			if settled.CompareAndSwap(false, true) {
				return none, context.Cause(ctx)
			}
			<-t.done
		case <-l.done:
			if settled.CompareAndSwap(false, true) {
				return none, fault.New(fault.WrongState, fault.Pool, "the pool was removed")
			}
			return answer, failure
		}
	}
}

// glance is tell of a reader, who does not wait for others either.
func glance(ctx context.Context, l *lane, work func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, freshTime, fault.New(fault.Timeout, fault.Pool, "the pool's file system did not answer within %v", freshTime))
	defer cancel()
	return tell(ctx, l, work)
}

// tell is ask for work that has no answer but its error.
func tell(ctx context.Context, l *lane, work func() error) error {
	_, err := ask(ctx, l, answerTime, func() (struct{}, error) { return struct{}{}, work() }, nil)
	return err
}
