package operation

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/scope/scopetest"
)

// scoped is a payload whose last step notes the scope that it runs in, and fails while its owner's fails is set.
type scoped struct {
	o  *scopedOwner
	op *Operation
}

type scopedOwner struct {
	fails bool
	seen  []scope.Scope
}

func (w *scoped) Opened(op *Operation) error { w.op = op; return nil }

func (w *scoped) Steps() []Step {
	decide := Step{Name: "decide", Effect: Lasting, Decisive: true, Do: func(context.Context) error { return nil }}
	return []Step{decide, {Name: "open", Effect: Lasting, Do: func(context.Context) error {
		w.o.seen = append(w.o.seen, w.op.Scope())
		if w.o.fails {
			return errors.New("not yet")
		}
		return nil
	}}}
}

func scopedSet(life context.Context, t *testing.T, dir string, o *scopedOwner, records ...Record) *Set[*scopedOwner] {
	t.Helper()
	s, err := Open(Config[*scopedOwner]{
		Owner: o, Kinds: Kinds[*scopedOwner]{{Name: "scoped", Version: 1, Bind: func(o *scopedOwner) Work { return &scoped{o: o} }}},
		Files: Files{Dir: dir}, Stored: Files{Dir: dir}, Log: slog.New(slog.DiscardHandler), Life: life,
	}, records)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The client's limits apply while its call lasts. A later try, and the next daemon, keep its folders, and
// do not ask again for rights that were granted.
func TestSteps_WorkInTheScopeThatTheirRecordKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := errors.New("full")
		client := scopetest.Client(scopetest.Limits{
			Call: func(string) error { return full }, Volume: func(_, _ string) error { return full },
		}).CountedFor("alice").Within([]string{"/own"})
		life, end := context.WithCancelCause(t.Context())
		o, dir := &scopedOwner{fails: true}, t.TempDir()
		s := scopedSet(life, t, dir, o)
		op, err := s.Begin(client, "scoped", &scoped{o: o}, Record{})
		if err != nil {
			t.Fatal(err)
		}
		if err := op.Run(t.Context()); err == nil || op.Status().State != Owed {
			t.Fatalf("it is %v: %v", op.Status().State, err)
		}
		<-time.After(2 * lastPause) // in the synctest bubble
		end(nil)
		s.Close()
		if len(o.seen) < 2 {
			t.Fatalf("it was tried %d times", len(o.seen))
		}
		if err := o.seen[0].ReserveVolume("pool", "name"); !errors.Is(err, full) {
			t.Errorf("in the client's call a step may make a volume: %v", err)
		}
		records, err := Files{Dir: dir}.Read()
		if err != nil || len(records) != 1 {
			t.Fatal(records, err)
		}
		next := &scopedOwner{}
		if err := scopedSet(t.Context(), t, dir, next, records...).Recover(t.Context()); err != nil || len(next.seen) != 1 {
			t.Fatal(next.seen, err)
		}
		for what, sc := range map[string]scope.Scope{"a later try": o.seen[1], "the next daemon": next.seen[0]} {
			if sc.Client() != "alice" || !slices.Equal(sc.Folders(), []string{"/own"}) || sc.Limits() != nil {
				t.Errorf("%s has the scope of %s, in %v", what, sc, sc.Folders())
			}
			if err := errors.Join(sc.Authorize("uuid"), sc.ReserveVolume("pool", "name")); err != nil {
				t.Errorf("%s is refused: %v", what, err)
			}
		}
	})
}

// A record without a scope opens nothing, and no operation begins without one.
func TestBegin_RefusesTheZeroScope(t *testing.T) {
	o, dir := &scopedOwner{}, t.TempDir()
	s := scopedSet(t.Context(), t, dir, o)
	_, begun := s.Begin(scope.Scope{}, "scoped", &scoped{o: o}, Record{})
	_, followed := s.Follow(scope.Scope{}, "scoped", &scoped{o: o}, Record{})
	if !fault.Is(begun, fault.Denied) || !fault.Is(followed, fault.Denied) || len(s.Operations()) > 0 {
		t.Errorf("begun: %v, followed: %v", begun, followed)
	}
	r := Record{ID: "a", Kind: "scoped", Version: 1, Payload: []byte("{}")}
	if err := scopedSet(t.Context(), t, dir, o, r).Recover(t.Context()); err != nil || len(o.seen) != 1 {
		t.Fatal(o.seen, err)
	}
	if err := o.seen[0].Check(); !fault.Is(err, fault.Denied) {
		t.Errorf("its step may do everything: %v", err)
	}
}
