package fleet

import (
	"context"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/word/event"
)

func TestEndWatcher_GuestEnds(t *testing.T) {
	h := newHerd(t)
	h.define(small("first"), small("second"))
	h.run(Request{Verb: Start, Options: Options{Paused: true}}, "all")
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	r := &run{fleet: h.Fleet}
	stopped := r.watchEnds()
	defer func() { stopped() }()
	members := h.Select(selectors(t, "all"))
	waits := func(i int, ended <-chan bool) <-chan error {
		over := make(chan error, 1)
		go func() { over <- waitForEnd(ctx, members[i].Guest, ended) }()
		return over
	}
	first, forget := r.endWatcher.watch(members[0].Guest)
	defer forget()
	over := waits(0, first)
	h.run(Request{Verb: Destroy}, "first")
	ok(t, <-over)

	// A guest that has ended counts as ended even if it runs again.
	word := make(chan bool, 1)
	notify(word, false)
	notify(word, true)
	notify(word, false)
	ok(t, waitForEnd(ctx, members[1].Guest, word))

	// Waiters are notified even if the log dropped the event.
	stopped()
	r.endWatcher = newEndWatcher(h.events)
	second, forget := r.endWatcher.watch(members[1].Guest)
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
		r.endWatcher.follow(following)
	}()
	stopped = func() {
		cancel(nil)
		<-followed
	}
	ok(t, <-over)
}
