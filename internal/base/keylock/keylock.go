package keylock

import (
	"context"
	"sync"
)

// Locks is a set of locks by name: one caller at a time holds a name. The zero value is ready.
type Locks[Name comparable] struct {
	mu    sync.Mutex
	taken map[Name]chan struct{} // closed when the turn ends
}

// Lock waits for the lock of a name until ctx ends.
func (t *Locks[Name]) Lock(ctx context.Context, name Name) (leave func(), err error) {
	for {
		t.mu.Lock()
		busy := t.taken[name]
		if busy == nil {
			defer t.mu.Unlock()
			return t.begin(name), nil
		}
		t.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// begin takes a lock that is free. mu must be held.
func (t *Locks[Name]) begin(name Name) (leave func()) {
	if t.taken == nil {
		t.taken = map[Name]chan struct{}{}
	}
	mine := make(chan struct{})
	t.taken[name] = mine
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.taken, name)
		close(mine)
	}
}
