package fleet

import (
	"context"
	"sync"

	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// endings tells those who wait that a guest has ended. One reader of the event
// log serves a whole run, however many wait.
type endings struct {
	reader *event.Reader

	mu      sync.Mutex
	waiting map[string]chan bool // by UUID; holds one: true: ended, false: look again
}

func newEndings(log *event.Log) *endings {
	return &endings{reader: log.Reader(), waiting: map[string]chan bool{}}
}

// follow reads the log until ctx ends.
func (e *endings) follow(ctx context.Context) {
	for {
		happened, lost, err := e.reader.Next(ctx)
		if err != nil {
			return
		}
		if lost > 0 {
			e.tellAll()
		}
		if c, is := happened.Payload.(event.DomainChange); is && c.Change == event.Stopped {
			e.mu.Lock()
			tell(e.waiting[happened.Source.UUID], true)
			e.mu.Unlock()
		}
	}
}

// tellAll makes everybody look: the log has dropped events that nobody read.
func (e *endings) tellAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.waiting {
		tell(c, false)
	}
}

// tell leaves word and never waits. That a guest has ended replaces what lies there:
// it may run again when the reader comes to look.
func tell(c chan bool, ended bool) {
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

// expect begins to listen for the end of a guest; forget ends that.
func (e *endings) expect(g *guest.Guest) (ended <-chan bool, forget func()) {
	c := make(chan bool, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting[g.UUID()] = c
	return c, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.waiting, g.UUID())
	}
}

// wait returns once the guest has no process, or the reason why ctx ended.
func wait(ctx context.Context, g *guest.Guest, ended <-chan bool) error {
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
