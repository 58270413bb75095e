package fleet

import (
	"context"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/word/event"
)

func TestEndings_GuestEnds(t *testing.T) {
	h := newHerd(t)
	h.define(small("first"), small("second"))
	h.run(Request{Verb: Start, Options: Options{Paused: true}}, "all")
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	r := &run{fleet: h.Fleet}
	stopped := r.followEndings()
	defer func() { stopped() }()
	members := h.Select(selectors(t, "all"))
	waits := func(i int, ended <-chan bool) <-chan error {
		over := make(chan error, 1)
		go func() { over <- wait(ctx, members[i].Guest, ended) }()
		return over
	}
	first, forget := r.endings.expect(members[0].Guest)
	defer forget()
	over := waits(0, first)
	h.run(Request{Verb: Destroy}, "first")
	ok(t, <-over)

	// A guest that has ended counts as ended even if it runs again.
	word := make(chan bool, 1)
	tell(word, false)
	tell(word, true)
	tell(word, false)
	ok(t, wait(ctx, members[1].Guest, word))

	// Waiters are notified even if the log dropped the event.
	stopped()
	r.endings = newEndings(h.events)
	second, forget := r.endings.expect(members[1].Guest)
	defer forget()
	over = waits(1, second)
	h.run(Request{Verb: Destroy}, "second")
	for range event.Capacity {
		h.events.Append(event.Source{Name: "noise"}, event.DomainReboot{})
	}
	following, cancel := context.WithCancelCause(ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		r.endings.follow(following)
	}()
	stopped = func() {
		cancel(nil)
		<-followed
	}
	ok(t, <-over)
}
