package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// schedule works through a set in order. The caller's goroutine decides; up to parallel goroutines work.
type schedule struct {
	log      *slog.Logger
	order    []orderEntry
	names    []string
	parallel int
	// keepGoing begins other guests after a failure.
	keepGoing bool
	// strict skips the dependents of a guest that failed.
	strict bool

	do     func(ctx context.Context, i int) Result
	report func(i int, r Result)

	began            time.Time
	openDependencies []int // open dependencies of each guest
	ended            []bool
	inGroup          []int // unfinished guests of each group
	group            int   // the current group
	ready            []int
	undone           int
}

// finished is the end of one turn.
type finished struct {
	i      int
	result Result
}

// run gives every guest a turn, or a result that says why not.
func (s *schedule) run(ctx context.Context) {
	s.prepare()
	ended := make(chan finished, s.parallel)
	running, cancelled := 0, ctx.Done()
	var stopped error
	for s.undone > 0 {
		for stopped == nil && running < s.parallel && len(s.ready) > 0 {
			if ctx.Err() != nil {
				stopped, cancelled = context.Cause(ctx), nil
				break
			}
			i := s.ready[0]
			s.ready = s.ready[1:]
			running++
			go func() { ended <- finished{i, s.runTurn(ctx, i)} }()
		}
		if running == 0 {
			s.abandon(stopped)
			return
		}
		select {
		case e := <-ended:
			running--
			if e.result.Outcome == Failed && !s.keepGoing && stopped == nil {
				stopped = fault.New(fault.Aborted, fault.Call, "not begun, because %s failed", s.names[e.i])
			}
			s.settle(e.i, e.result)
		case <-cancelled:
			stopped, cancelled = context.Cause(ctx), nil
		}
	}
}

func (s *schedule) prepare() {
	s.began, s.undone = time.Now(), len(s.order)
	s.openDependencies, s.ended = make([]int, len(s.order)), make([]bool, len(s.order))
	for i, p := range s.order {
		s.openDependencies[i] = len(p.before)
		for len(s.inGroup) <= p.group {
			s.inGroup = append(s.inGroup, 0)
		}
		s.inGroup[p.group]++
	}
	s.openGroup()
}

// openGroup makes the guests ready that only waited for their group.
func (s *schedule) openGroup() {
	for s.group < len(s.inGroup) && s.inGroup[s.group] == 0 {
		s.group++
	}
	for i, p := range s.order {
		if p.group == s.group && s.openDependencies[i] == 0 && !s.ended[i] {
			s.ready = append(s.ready, i)
		}
	}
}

func (s *schedule) runTurn(ctx context.Context, i int) Result {
	began := time.Now()
	r := s.recoverTurn(ctx, i)
	r.Queued, r.Took = began.Sub(s.began), time.Since(began)
	return r
}

// recoverTurn limits a panic to the turn of one guest.
func (s *schedule) recoverTurn(ctx context.Context, i int) (r Result) {
	defer func() {
		if bug := recover(); bug != nil {
			s.log.Error("panic in the work on a guest", "name", s.names[i], "panic", bug, "stack", string(debug.Stack()))
			r = Result{Outcome: Failed, Error: fault.New(fault.Internal, fault.Domain, "the work on %s broke: %v; see the daemon's log", s.names[i], bug)}
		}
	}()
	return s.do(ctx, i)
}

// settle reports a result and makes the dependents ready, or skips them.
func (s *schedule) settle(i int, r Result) {
	group := s.group
	s.reportEnd(i, r)
	for next := []finished{{i, r}}; len(next) > 0; next = next[1:] {
		failed := next[0].result.Outcome == Failed || next[0].result.Outcome == Skipped
		for _, j := range s.order[next[0].i].after {
			switch s.openDependencies[j]--; {
			case s.ended[j]:
			case s.strict && failed:
				skipped := Result{
					Outcome: Skipped, Queued: time.Since(s.began),
					Note: fmt.Sprintf("it depends on %s, which was not done", s.names[next[0].i]),
				}
				s.reportEnd(j, skipped)
				next = append(next, finished{j, skipped})
			case s.openDependencies[j] == 0 && s.order[j].group == group:
				s.ready = append(s.ready, j)
			}
		}
	}
	if s.undone > 0 && s.inGroup[s.group] == 0 {
		s.openGroup()
	}
}

func (s *schedule) reportEnd(i int, r Result) {
	s.ended[i] = true
	s.undone--
	s.inGroup[s.order[i].group]--
	r.Wave = s.order[i].wave
	s.report(i, r)
}

// abandon reports every guest that was not begun.
func (s *schedule) abandon(why error) {
	for i := range s.order {
		if !s.ended[i] {
			s.reportEnd(i, Result{Outcome: Cancelled, Error: why, Queued: time.Since(s.began)})
		}
	}
}
