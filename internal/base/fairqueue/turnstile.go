// Package fairqueue lets work that needs a processor through, a bounded number at
// a time, and of those who wait one after another: whoever brings much waits
// behind himself and not before the others. The processors that remain, and the
// moments in between, are for what costs little and does not come here.
//
// What belongs here: turns. What does not: work that waits for something else than
// a processor (a disk, QEMU, a probe): it would keep a place while it waits.
package fairqueue

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// Turnstile has places for work that goes on at the same time.
type Turnstile struct {
	mu   sync.Mutex // held over nothing slow
	free int
	// waiting are those of whose queues somebody waits in one, in the order of their turns.
	waiting []*Party
}

// New makes a turnstile with a number of places.
func New(places int) *Turnstile { return &Turnstile{free: places} }

// Party has queues: whoever has many takes no more turns than who has one. Each place that becomes
// free goes to the next party, and of its queues to the next.
type Party struct {
	turnstile *Turnstile
	waiting   []*Queue // in which somebody waits, in the order of their turns
}

// Party makes one. It needs no end.
func (t *Turnstile) Party() *Party { return &Party{turnstile: t} }

// Queue is where the work of one client waits.
type Queue struct {
	party   *Party
	waiting []chan struct{} // a channel is closed when its work has a place
}

// Queue makes a queue. It needs no end.
func (p *Party) Queue() *Queue { return &Queue{party: p} }

type key struct{}

// With gives a context whose work waits in a queue.
func With(ctx context.Context, q *Queue) context.Context { return context.WithValue(ctx, key{}, q) }

// Do does work when its turn comes. A context that is of no queue has it done at
// once. The error is that of the work, or why its turn did not come.
func Do(ctx context.Context, work func() error) error {
	q, ok := ctx.Value(key{}).(*Queue)
	if !ok {
		return work()
	}
	if err := q.enter(ctx); err != nil {
		return err
	}
	defer q.party.turnstile.leave()
	return work()
}

func (q *Queue) enter(ctx context.Context) error {
	p := q.party
	t := p.turnstile
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	if len(p.waiting) == 0 {
		t.waiting = append(t.waiting, p)
	}
	if len(q.waiting) == 0 {
		p.waiting = append(p.waiting, q)
	}
	q.waiting = append(q.waiting, turn)
	t.mu.Unlock()
	select {
	case <-turn:
		// The runtime lets whoever was woken go first, and so again and again those
		// who wait here; now the others are first.
		runtime.Gosched()
		return nil
	case <-ctx.Done():
	}
	if !t.forget(q, turn) {
		t.leave() // its turn came just now
	}
	return context.Cause(ctx)
}

// forget takes one who waits out of his queue, if he still waits.
func (t *Turnstile) forget(q *Queue, turn chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(q.waiting, turn)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	p := q.party
	if len(q.waiting) == 0 {
		i = slices.Index(p.waiting, q)
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
	if len(p.waiting) == 0 {
		i = slices.Index(t.waiting, p)
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	return true
}

// leave gives a place to the first of the next queue of the next party.
func (t *Turnstile) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.free++
		return
	}
	p := first(&t.waiting)
	q := first(&p.waiting)
	turn := first(&q.waiting)
	if len(q.waiting) > 0 {
		p.waiting = append(p.waiting, q)
	}
	if len(p.waiting) > 0 {
		t.waiting = append(t.waiting, p)
	}
	close(turn)
}

// first takes out who is first of those who wait.
func first[T any](waiting *[]T) T {
	one := (*waiting)[0]
	*waiting = slices.Delete(*waiting, 0, 1)
	return one
}
