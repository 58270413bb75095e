package storm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/remote"
)

// result is how one call went.
type result struct {
	took time.Duration
	err  error
}

// errCut is the cause of a call that outlasts the lab's patience.
var errCut = errors.New("still blocked when the lab's patience ended")

// grace is how long a call goes on after an interrupt: a daemon that is left in
// the middle of one might make a guest after all have been taken away.
const grace = 5 * time.Second

// time makes one call, as long as the lab's patience lasts.
func (t *turn) time(ctx context.Context, do func(context.Context) error) result {
	call, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), t.Patience, errCut)
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, stop) })()
	begin := time.Now()
	err := do(call)
	return result{time.Since(begin), err}
}

// storm does something to the guests from first to before last, by as many
// clients at once as there are, and records each call and the whole. The first
// call that is cut ends it: what is blocked is not asked for more. An error says
// that not all went well.
func (t *turn) storm(ctx context.Context, metric Metric, first, last int, do func(ctx context.Context, client, guest int) error) error {
	var next atomic.Int64
	next.Store(int64(first))
	var cut atomic.Bool
	var mu sync.Mutex
	var results []result
	var clients sync.WaitGroup
	before, measured := t.daemonTime()
	begin := time.Now()
	for client := range min(t.Clients, last-first) {
		clients.Go(func() {
			for !cut.Load() && ctx.Err() == nil {
				guest := int(next.Add(1)) - 1
				if guest >= last {
					return
				}
				one := t.time(ctx, func(ctx context.Context) error { return do(ctx, client, guest) })
				if errors.Is(one.err, errCut) {
					cut.Store(true)
				}
				mu.Lock()
				results = append(results, one)
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	wall := time.Since(begin)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t.record(metric, results)
	if cut.Load() {
		t.blocked(metric, wall, fmt.Sprintf("%d of %d calls had ended", done(results), last-first))
		return errCut
	}
	if err := firstError(results); err != nil {
		return fmt.Errorf("%s of %d guests, %d of them well: %w", metric, last-first, done(results), err)
	}
	t.sample(metric, Seconds, wall.Seconds())
	if after, ok := t.daemonTime(); ok && measured && metric != MetricPrepare {
		t.sample(metric+".processor", Seconds, after-before)
	}
	return nil
}

func done(results []result) (n int) {
	for _, r := range results {
		if r.err == nil {
			n++
		}
	}
	return n
}

func firstError(results []result) error {
	for _, r := range results {
		if r.err != nil {
			return r.err
		}
	}
	return nil
}

// outcome tells a call's end apart. Mild takes a refusal for a conflict where
// several clients want different things.
func (r result) outcome(mild bool) (o Outcome, code int32, text string) {
	if r.err == nil {
		return Done, 0, ""
	}
	if errors.Is(r.err, errCut) {
		return Cut, 0, ""
	}
	refused, ok := errors.AsType[*remote.Error](r.err)
	if !ok {
		if fault.Is(r.err, fault.Timeout) || errors.Is(r.err, context.DeadlineExceeded) {
			return TimedOut, 0, r.err.Error()
		}
		return Refused, 0, r.err.Error()
	}
	o = Refused
	switch refused.Code {
	case codeOperationTimeout:
		o = TimedOut
	case codeOperationInvalid, codeOperationFailed, codeOperationAborted:
		if mild {
			o = Conflict
		}
	}
	return o, refused.Code, refused.Message
}

// group gathers results that ended alike. The records have no cell yet.
func group(metric Metric, results []result, mild bool) []Calls {
	type end struct {
		outcome Outcome
		code    int32
	}
	byEnd := map[end]*Calls{}
	var order []end
	for _, r := range results {
		outcome, code, text := r.outcome(mild)
		e := end{outcome, code}
		if byEnd[e] == nil {
			byEnd[e] = &Calls{Metric: metric, Outcome: outcome, Code: code, Text: text}
			order = append(order, e)
		}
		byEnd[e].Took = append(byEnd[e].Took, r.took.Microseconds())
	}
	slices.SortFunc(order, func(a, b end) int {
		return cmp.Or(cmp.Compare(a.outcome, b.outcome), cmp.Compare(a.code, b.code))
	})
	var all []Calls
	for _, e := range order {
		all = append(all, *byEnd[e])
	}
	return all
}
