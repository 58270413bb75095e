package event

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestReader_EverythingInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog()
		l.Append(Source{Name: "before"}, DomainReboot{})
		r := l.Reader()
		go func() {
			for range 100 {
				l.Append(Source{Name: "web"}, DomainReboot{})
			}
		}()
		for want := uint64(2); want <= 101; want++ {
			e, lost, err := r.Next(t.Context())
			if err != nil || lost != 0 || e.Seq != want || e.Source.Name != "web" {
				t.Fatalf("got event %d of %q, lost %d, %v; want %d", e.Seq, e.Source.Name, lost, err, want)
			}
		}
	})
}

func TestReader_TooSlow(t *testing.T) {
	l := NewLog()
	r := l.Reader()
	for range Capacity + 10 {
		l.Append(Source{}, DomainReboot{})
	}
	e, lost, err := r.Next(t.Context())
	if err != nil || lost != 10 || e.Seq != 11 {
		t.Fatalf("got event %d, lost %d, %v; want event 11, lost 10", e.Seq, lost, err)
	}
	for want := uint64(12); want <= Capacity+10; want++ {
		if e, lost, _ := r.Next(t.Context()); e.Seq != want || lost != 0 {
			t.Fatalf("got event %d, lost %d; want %d", e.Seq, lost, want)
		}
	}
}

func TestNext_ContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the client has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		r := NewLog().Reader()
		done := make(chan error)
		go func() {
			_, _, err := r.Next(ctx)
			done <- err
		}()
		synctest.Wait()
		cancel(gone)
		if err := <-done; !errors.Is(err, gone) {
			t.Fatalf("got %v, want the cause", err)
		}
	})
}
