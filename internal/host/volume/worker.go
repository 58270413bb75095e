package volume

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Bounds of a worker. A file system that does not answer within staleAfter makes its pool stale. A request fails
// when there was no progress for answerTime. Work with progress, such as reading a folder with thousands of
// volumes, may take up to longTime.
const (
	workerQueue = 64
	staleAfter  = 2 * time.Second
	answerTime  = 30 * time.Second
	longTime    = 10 * time.Minute
	refreshWait = time.Second // that a reader waits for a pool to refresh its view
)

// worker does the short work on one pool's file system, one task after another in its own goroutine. System
// calls on a file system cannot be interrupted, so a worker may be stuck. Its callers then return, and the age
// of the view shows it.
type worker struct {
	tasks chan *task
	// busy is when the present task last made progress; nil: there is no task.
	busy atomic.Pointer[time.Time]
	quit chan struct{}
	done chan struct{}
	once sync.Once
}

type task struct {
	ctx  context.Context // of the caller, for as long as it waits
	work func()
	done chan struct{}
}

func newWorker() *worker {
	l := &worker{tasks: make(chan *task, workerQueue), quit: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

func (l *worker) run() {
	defer close(l.done)
	for {
		select {
		case t := <-l.tasks:
			if t.ctx.Err() != nil {
				continue // its caller no longer waits
			}
			l.progress()
			t.work()
			l.busy.Store(nil)
			close(t.done)
		case <-l.quit:
			return
		}
	}
}

// progress records progress of the present task. The task itself calls it.
func (l *worker) progress() {
	now := time.Now()
	l.busy.Store(&now)
}

// stuck returns how long the file system has not answered.
func (l *worker) stuck() time.Duration {
	since := l.busy.Load()
	if since == nil {
		return 0
	}
	return time.Since(*since)
}

// stop ends the goroutine after its present task.
func (l *worker) stop() { l.once.Do(func() { close(l.quit) }) }

// recoverPanic turns a panic in the work on a pool into an error for its caller.
func recoverPanic[T any](work func() (T, error)) (value T, err error) {
	defer func() {
		if bug := recover(); bug != nil {
			err = fault.New(fault.Internal, fault.Pool, "work on the pool's storage broke: %v", bug)
		}
	}()
	return work()
}

// runWithin runs work in a worker and waits for its answer, as long as it or the tasks before it make progress within
// limit. An answer that comes after the caller left goes to discard, which may be nil. Work that had not begun
// by then is never begun.
func runWithin[T any](ctx context.Context, l *worker, limit time.Duration, work func() (T, error), discard func(T)) (T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		none, answer T
		failure      error
		settled      atomic.Bool // set by the first: the answer, or the end of waiting
	)
	t := &task{ctx: ctx, done: make(chan struct{})}
	t.work = func() {
		value, err := recoverPanic(work)
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
		return none, fault.New(fault.Busy, fault.Pool, "%d requests already wait for the pool's file system", workerQueue)
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

// tryInWorker is runInWorker for a reader, with a short deadline.
func tryInWorker(ctx context.Context, l *worker, work func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, refreshWait, fault.New(fault.Timeout, fault.Pool, "the pool's file system did not answer within %v", refreshWait))
	defer cancel()
	return runInWorker(ctx, l, work)
}

// runInWorker is runWithin for work that returns only an error.
func runInWorker(ctx context.Context, l *worker, work func() error) error {
	_, err := runWithin(ctx, l, answerTime, func() (struct{}, error) { return struct{}{}, work() }, nil)
	return err
}
