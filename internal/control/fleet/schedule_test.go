package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// play runs a schedule of guests, one second a turn; those in broken fail. It returns the results as texts.
func play(ctx context.Context, t *testing.T, text string, s schedule, broken ...string) (Summary, []string) {
	t.Helper()
	names, marks := guests(t, text)
	entries := orderGuests(names, marks, dependenciesFirst)
	s.names, s.order = names, entries
	if s.do == nil {
		s.do = func(_ context.Context, i int) Result {
			<-time.After(time.Second)
			if slices.Contains(broken, names[i]) {
				return Result{Outcome: Failed, Error: errors.New("broken")}
			}
			return Result{Outcome: Done}
		}
	}
	var got []string
	sum := s.runAndCount(ctx, func(Plan) {}, func(i int, r Result) {
		got = append(got, fmt.Sprintf("%s %s %v", names[i], r.Outcome, r.Queued))
	})
	return sum, got
}

func TestSchedule_OrderAndBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sum, got := play(t.Context(), t, "a b c d<a", schedule{parallel: 2, keepGoing: true})
		if sum.Done != 4 || sum.Took != 2*time.Second {
			t.Errorf("got %+v: %v", sum, got)
		}
		sum, got = play(t.Context(), t, "a b:1 c:2", schedule{parallel: 9, keepGoing: true})
		want := []string{"a done 0s", "b done 1s", "c done 2s"}
		if sum.Took != 3*time.Second || !slices.Equal(got, want) {
			t.Errorf("got %v after %v, want %v", got, sum.Took, want)
		}
	})
}

func TestSchedule_FailureSkipsDependents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sum, got := play(t.Context(), t, "db other web<db page<web", schedule{parallel: 9, keepGoing: true, strict: true}, "db")
		if sum.Failed != 1 || sum.Done != 1 || sum.Skipped != 2 || sum.Took != time.Second {
			t.Errorf("got %+v: %v", sum, got)
		}
		// Without strict, the dependents continue.
		sum, got = play(t.Context(), t, "db web<db", schedule{parallel: 9, keepGoing: true}, "db")
		if sum.Failed != 1 || sum.Done != 1 {
			t.Errorf("got %+v: %v", sum, got)
		}
		// So does a later group.
		sum, got = play(t.Context(), t, "db web:1", schedule{parallel: 9, keepGoing: true, strict: true}, "db")
		if sum.Failed != 1 || sum.Done != 1 {
			t.Errorf("got %+v: %v", sum, got)
		}
	})
}

func TestSchedule_FailureEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sum, got := play(t.Context(), t, "a b c d e:1", schedule{parallel: 2}, "a")
		if sum.Failed != 1 || sum.Done > 2 || sum.Cancelled < 2 || sum.Failed+sum.Done+sum.Cancelled != 5 {
			t.Errorf("got %+v: %v", sum, got)
		}
	})
}

func TestSchedule_CancelWaitsForBegunTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(1500*time.Millisecond, func() { cancel(errors.New("enough")) })
		sum, got := play(ctx, t, "a b c d", schedule{parallel: 1, keepGoing: true})
		if sum.Done != 2 || sum.Cancelled != 2 || sum.Took != 2*time.Second {
			t.Errorf("got %+v: %v", sum, got)
		}
		sum, _ = play(ctx, t, "a b", schedule{parallel: 1, keepGoing: true})
		if sum.Cancelled != 2 || sum.Took != 0 {
			t.Errorf("a run that is cancelled beforehand: %+v", sum)
		}
	})
}

func TestSchedule_PanicEndsOneTurn(t *testing.T) {
	s := schedule{parallel: 2, keepGoing: true, log: slog.New(slog.DiscardHandler)}
	s.do = func(_ context.Context, i int) Result {
		if i == 0 {
			panic("a bug")
		}
		return Result{Outcome: Done}
	}
	if sum, got := play(t.Context(), t, "a b", s); sum.Failed != 1 || sum.Done != 1 {
		t.Errorf("got %+v: %v", sum, got)
	}
}

// TestSchedule_Properties draws sets and failures and checks the rules of a schedule.
func TestSchedule_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 12).Draw(t, "n")
		names, marks, broken := make([]string, n), make([]*Marks, n), make([]bool, n)
		for i := range n {
			names[i] = fmt.Sprint("g", i)
			marks[i] = &Marks{Priority: rapid.IntRange(0, 2).Draw(t, "priority")}
			broken[i] = rapid.IntRange(0, 4).Draw(t, "broken") == 0
			if i > 0 {
				for _, j := range rapid.SliceOfN(rapid.IntRange(0, i-1), 0, 2).Draw(t, "after") {
					marks[i].After = append(marks[i].After, names[j])
				}
			}
		}
		entries := orderGuests(names, marks, rapid.SampledFrom([]direction{dependenciesFirst, dependentsFirst, unordered}).Draw(t, "direction"))
		s := schedule{order: entries, names: names, parallel: rapid.IntRange(1, 4).Draw(t, "parallel"), keepGoing: true, strict: rapid.Bool().Draw(t, "strict")}
		var mu sync.Mutex
		var atOnce atomic.Int32
		over := make([]bool, n)
		s.do = func(_ context.Context, i int) Result {
			if atOnce.Add(1) > int32(s.parallel) {
				t.Errorf("more than %d at once", s.parallel)
			}
			defer atOnce.Add(-1)
			mu.Lock()
			defer mu.Unlock()
			for j := range entries {
				if !over[j] && (slices.Contains(entries[i].before, j) || entries[j].group < entries[i].group) {
					t.Errorf("%s has its turn before %s is over", names[i], names[j])
				}
			}
			if broken[i] {
				return Result{Outcome: Failed}
			}
			return Result{Outcome: Done}
		}
		outcomes := make([]Outcome, n)
		sum := s.runAndCount(context.Background(), func(Plan) {}, func(i int, r Result) {
			mu.Lock()
			defer mu.Unlock()
			if over[i] {
				t.Errorf("%s is told twice", names[i])
			}
			over[i], outcomes[i] = true, r.Outcome
		})
		if total := sum.Done + sum.Failed + sum.Skipped; total != n {
			t.Fatalf("%d of %d are told: %+v", total, n, sum)
		}
		for i, p := range entries {
			blocked := slices.ContainsFunc(p.before, func(j int) bool { return outcomes[j] != Done })
			if want := s.strict && blocked; want != (outcomes[i] == Skipped) {
				t.Fatalf("%s is %s; blocked %v: %s", names[i], outcomes[i], blocked, strings.Join(names, " "))
			}
		}
	})
}
