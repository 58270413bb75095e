package operation

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// debt is a payload whose only step fails until paid is set.
type debt struct{ d *debtor }

type debtor struct{ paid, done bool }

func (w *debt) Steps() []Step {
	return []Step{{Name: "pay", Effect: Boot, Decisive: true, Do: func(context.Context) error {
		if !w.d.paid {
			return errors.New("it is not paid yet")
		}
		w.d.done = true
		return nil
	}}}
}

// TestOwed_TriedInOwnersTurn: no owed step is tried while the owner is busy,
// and it is tried soon after.
func TestOwed_TriedInOwnersTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancelCause(t.Context())
		turn, owner := make(chan struct{}, 1), &debtor{}
		turn <- struct{}{}
		s := New(Config[*debtor]{
			Owner: owner, Kinds: Kinds[*debtor]{{Name: "debt", Version: 1, Bind: func(d *debtor) Work { return &debt{d} }}},
			Files: FileJournal{Dir: t.TempDir()}, Log: slog.New(slog.DiscardHandler), Life: life,
			Turn: func(ctx context.Context, do func() error) error {
				select {
				case <-turn:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				defer func() { turn <- struct{}{} }()
				return do()
			},
		})
		<-turn
		op, err := s.ForceBegin(scope.Daemon("a test"), "debt", &debt{owner}, Record{})
		if err != nil {
			t.Fatal(err)
		}
		if err := op.Run(t.Context()); err == nil || op.Status().State != Owed {
			t.Fatalf("it is %v: %v", op.Status().State, err)
		}
		owner.paid = true
		<-time.After(10 * lastPause) // in the synctest bubble
		if owner.done {
			t.Fatal("it was tried while its owner was busy")
		}
		turn <- struct{}{}
		<-time.After(2 * lastPause)
		<-turn
		if !owner.done || op.Status().State != Ended {
			t.Errorf("it is not done after the turn, and is %v", op.Status().State)
		}
		end(nil)
		s.Close()
	})
}

// TestForceBegin_RecordWrittenLater: a record that did not fit is written once there is space.
func TestForceBegin_RecordWrittenLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancelCause(t.Context())
		files, owner := FileJournal{Dir: filepath.Join(t.TempDir(), "full")}, &debtor{}
		s := New(Config[*debtor]{
			Owner: owner, Kinds: Kinds[*debtor]{{Name: "debt", Version: 1, Bind: func(d *debtor) Work { return &debt{d} }}},
			Files: files, Log: slog.New(slog.DiscardHandler), Life: life,
		})
		op, err := s.ForceBegin(scope.Daemon("a test"), "debt", &debt{owner}, Record{})
		if err != nil {
			t.Fatal(err)
		}
		if err := op.Run(t.Context()); err == nil {
			t.Fatal("it is done")
		}
		if err := os.Mkdir(files.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * lastPause) // in the synctest bubble
		if all, err := files.Read(); err != nil || len(all) != 1 {
			t.Errorf("%d records: %v", len(all), err)
		}
		end(nil)
		s.Close()
	})
}

// TestFiles_DamagedRecord: readable records are returned, with an error.
func TestFiles_DamagedRecord(t *testing.T) {
	f := FileJournal{Dir: t.TempDir()}
	for _, id := range []string{"a", "c"} {
		if err := f.Write(Record{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(f.Dir, filePrefix+"b"+fileSuffix), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := f.Read(); err == nil || len(all) != 2 {
		t.Errorf("it gives %d records and the error %v", len(all), err)
	}
}
