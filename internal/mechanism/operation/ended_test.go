package operation

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The owner stops giving turns at some moment, as guest.run.unlessEnded does.
func TestOwed_EndedOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancelCause(t.Context())
		var settling atomic.Bool
		var asked atomic.Int64
		owner := &debtor{}
		s := New(Config[*debtor]{
			Owner: owner, Kinds: Kinds[*debtor]{{Name: "debt", Version: 1, Bind: func(d *debtor) Work { return &debt{d} }}},
			Files: FileJournal{Dir: t.TempDir()}, Log: slog.New(slog.DiscardHandler), Life: life,
			Turn: func(_ context.Context, do func() error) error {
				if settling.Load() {
					asked.Add(1)
					return errors.New("withheld")
				}
				return do()
			},
		})
		op, err := s.ForceBegin(scope.Daemon("a test"), "debt", &debt{owner}, Record{})
		if err != nil {
			t.Fatal(err)
		}
		_ = op.Run(t.Context())
		settling.Store(true)
		owner.paid = true
		if err := s.End(t.Context(), TheProcess); err != nil || op.Status().State != Ended {
			t.Fatal(err, op.Status().State)
		}
		over := make(chan struct{})
		go func() { s.Close(); close(over) }()
		<-time.After(24 * time.Hour)
		select {
		case <-over:
		default:
			t.Errorf("a day after it has ended it is still tried: %d turns asked, %d open", asked.Load(), len(s.Operations()))
		}
		end(nil)
		<-over
	})
}

type stuckJournal struct {
	FileJournal
	in, out chan struct{}
}

func (j *stuckJournal) Write(Record) error { close(j.in); <-j.out; return errors.New("no room") }

func TestBegin_RecordNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &stuckJournal{in: make(chan struct{}), out: make(chan struct{})}
		owner := &debtor{}
		s := New(Config[*debtor]{
			Owner: owner, Kinds: Kinds[*debtor]{{Name: "debt", Version: 1, Bind: func(d *debtor) Work { return &debt{d} }}},
			Files: j, Log: slog.New(slog.DiscardHandler), Life: t.Context(),
		})
		go func() { _, _ = s.Begin(scope.Daemon("a test"), "debt", &debt{owner}, Record{Objects: []string{"a"}}) }()
		<-j.in
		_, err := s.Begin(scope.Daemon("a test"), "debt", &debt{owner}, Record{Objects: []string{"a"}})
		var c *Conflict
		if !errors.As(err, &c) {
			t.Fatal(err)
		}
		close(j.out)
		synctest.Wait()
		select {
		case <-c.Stopped():
		case <-time.After(time.Hour):
			t.Errorf("who waits for it is not told; %d open", len(s.Operations()))
		}
	})
}
