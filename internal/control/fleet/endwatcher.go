package fleet

import (
	"context"
	"sync"

	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// endWatcher notifies waiters that a guest has ended. One reader of the event log serves a whole run.
type endWatcher struct {
	reader *event.Reader

	mu      sync.Mutex
	waiting map[string]chan bool // by UUID; room for one: true: ended, false: check again
}

func newEndWatcher(log *event.Log) *endWatcher {
	return &endWatcher{reader: log.Reader(), waiting: map[string]chan bool{}}
}

// follow reads the event log until ctx ends.
func (e *endWatcher) follow(ctx context.Context) {
	for {
		happened, lost, err := e.reader.Next(ctx)
		if err != nil {
			return
		}
		if lost > 0 {
			e.notifyAll()
		}
		if c, is := happened.Payload.(event.DomainChange); is && c.Change == event.Stopped {
			e.mu.Lock()
			notify(e.waiting[happened.Source.UUID], true)
			e.mu.Unlock()
		}
	}
}

// notifyAll makes every waiter check its guest, because the log has dropped unread events.
func (e *endWatcher) notifyAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.waiting {
		notify(c, false)
	}
}

// notify sends without waiting. "Ended" replaces an unread value: the guest may run again when the receiver
// reads it.
func notify(c chan bool, ended bool) {
	if ended {
		select {
		case <-c:
		default:
		}
	}
	select {
	case c <- ended:
	default:
	}
}

// watch listens for the end of a guest until forget is called.
func (e *endWatcher) watch(g *guest.Guest) (ended <-chan bool, forget func()) {
	c := make(chan bool, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting[g.UUID] = c
	return c, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.waiting, g.UUID)
	}
}

// waitForEnd returns when the guest has no process, or the cause when ctx ends.
func waitForEnd(ctx context.Context, g *guest.Guest, ended <-chan bool) error {
	for g.View().State.Active() {
		select {
		case over := <-ended:
			if over {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
