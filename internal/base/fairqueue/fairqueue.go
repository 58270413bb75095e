// Package fairqueue lets a bounded number of processor-bound jobs run at
// a time, and serves waiting clients in turn: a client with many jobs delays
// itself and not the others. The remaining processors, and the
// time in between, serve cheap work, which does not come here.
//
// This package hands out turns. Work that waits for something other than
// a processor (a disk, QEMU, a probe) does not belong here: it would hold a place while it waits.
package fairqueue

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// Scheduler has a number of places for concurrent work.
type Scheduler struct {
	mu   sync.Mutex // held over nothing slow
	free int
	// waiting are the tenants with waiting work, in the order of their turns.
	waiting []*Tenant
}

// New makes a scheduler with a number of places.
func New(places int) *Scheduler { return &Scheduler{free: places} }

// Tenant has flows. A tenant with many flows gets no more turns than a tenant with one. Each free
// place goes to the next tenant, and there to the next flow.
type Tenant struct {
	scheduler *Scheduler
	waiting   []*Flow // with waiting work, in the order of their turns
}

// Tenant makes one. It needs no cleanup.
func (t *Scheduler) Tenant() *Tenant { return &Tenant{scheduler: t} }

// Flow is the queue of one client's work.
type Flow struct {
	tenant  *Tenant
	waiting []chan struct{} // a channel is closed when its work has a place
}

// Flow makes a flow. It needs no cleanup.
func (p *Tenant) Flow() *Flow { return &Flow{tenant: p} }

type key struct{}

// With returns a context that makes its work wait in a flow.
func With(ctx context.Context, q *Flow) context.Context { return context.WithValue(ctx, key{}, q) }

// Do runs work when its turn comes. Work of a context without a flow runs at
// once. The error is that of the work, or the reason why its turn did not come.
func Do(ctx context.Context, work func() error) error {
	q, ok := ctx.Value(key{}).(*Flow)
	if !ok {
		return work()
	}
	if err := q.enter(ctx); err != nil {
		return err
	}
	defer q.tenant.scheduler.leave()
	return work()
}

func (q *Flow) enter(ctx context.Context) error {
	p := q.tenant
	t := p.scheduler
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
		// The runtime runs a woken goroutine first. Goroutines that wait here would
		// run first again and again; yield to the others.
		runtime.Gosched()
		return nil
	case <-ctx.Done():
	}
	if !t.forget(q, turn) {
		t.leave() // its turn came at the same moment
	}
	return context.Cause(ctx)
}

// forget removes a waiting job from its flow, if it still waits.
func (t *Scheduler) forget(q *Flow, turn chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(q.waiting, turn)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	p := q.tenant
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

// leave gives a place to the first job in the next flow of the next tenant.
func (t *Scheduler) leave() {
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

// first removes and returns the first waiting element.
func first[T any](waiting *[]T) T {
	one := (*waiting)[0]
	*waiting = slices.Delete(*waiting, 0, 1)
	return one
}
