package fairqueue

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// wait adds work to a flow and returns a channel with its result.
func wait(ctx context.Context, q *Flow, work func()) <-chan error {
	done := make(chan error, 1)
	go func() { done <- Do(With(ctx, q), func() error { work(); return nil }) }()
	return done
}

func TestDo_BusyFlowDelaysOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := New(1)
		much, little, other := ts.Tenant().Flow(), ts.Tenant().Flow(), ts.Tenant().Flow()
		block := make(chan struct{})
		var mu sync.Mutex
		var order []string
		note := func(who string) func() {
			return func() { mu.Lock(); defer mu.Unlock(); order = append(order, who) }
		}
		var all []<-chan error
		all = append(all, wait(t.Context(), much, func() { <-block }))
		synctest.Wait()
		for range 5 {
			all = append(all, wait(t.Context(), much, note("much")))
		}
		synctest.Wait()
		all = append(all, wait(t.Context(), little, note("little")))
		synctest.Wait()
		for range 2 {
			all = append(all, wait(t.Context(), other, note("other")))
		}
		synctest.Wait()
		close(block)
		for _, done := range all {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if want := []string{"much", "little", "other", "much", "other", "much", "much", "much"}; !slices.Equal(order, want) {
			t.Errorf("the order is %v", order)
		}
	})
}

// TestDo_TenantWithManyFlows: many flows of one tenant get as many turns as one flow with much work.
// Promise: W4
func TestDo_TenantWithManyFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := New(1)
		crowd := ts.Tenant()
		block := make(chan struct{})
		all := []<-chan error{wait(t.Context(), ts.Tenant().Flow(), func() { <-block })}
		synctest.Wait()
		var order []string // one job has the place at a time
		bring := func(q *Flow, who string) {
			all = append(all, wait(t.Context(), q, func() { order = append(order, who) }))
			synctest.Wait()
		}
		first := crowd.Flow()
		bring(first, "crowd 1")
		bring(first, "crowd 1")
		for range 3 {
			bring(crowd.Flow(), "crowd")
		}
		little := ts.Tenant().Flow()
		for range 2 {
			bring(little, "little")
		}
		close(block)
		for _, done := range all {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if want := []string{"crowd 1", "little", "crowd", "little", "crowd", "crowd", "crowd 1"}; !slices.Equal(order, want) {
			t.Errorf("the order is %v", order)
		}
		if ts.free != 1 || len(ts.waiting) != 0 || len(crowd.waiting) != 0 {
			t.Errorf("%+v %+v", ts, crowd)
		}
	})
}

func TestDo_CancelledWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := New(1)
		q := ts.Tenant().Flow()
		block := make(chan struct{})
		first := wait(t.Context(), q, func() { <-block })
		synctest.Wait()
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if err := <-wait(ctx, ts.Tenant().Flow(), func() { t.Error("it is done all the same") }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		close(block)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if ts.free != 1 || len(ts.waiting) != 0 {
			t.Errorf("%+v", ts)
		}
	})
}

func TestDo_WorkPanics(t *testing.T) {
	ts := New(1)
	func() {
		defer func() { _ = recover() }()
		_ = Do(With(t.Context(), ts.Tenant().Flow()), func() error { panic("a bug") })
	}()
	if ts.free != 1 {
		t.Error("the place is lost")
	}
}

func TestDo_ContextWithoutFlow(t *testing.T) {
	want := errors.New("its own")
	if err := Do(t.Context(), func() error { return want }); !errors.Is(err, want) {
		t.Error(err)
	}
}

// TestDo_ManyFlows: many jobs arrive, give up and end.
func TestDo_ManyFlows(t *testing.T) {
	const places = 3
	ts := New(places)
	var inside, most atomic.Int32
	var all sync.WaitGroup
	tenant := ts.Tenant()
	for i := range 20 {
		q := ts.Tenant().Flow()
		if i%2 == 0 {
			q = tenant.Flow()
		}
		for range 20 {
			all.Go(func() {
				ctx, stop := context.WithTimeout(t.Context(), time.Duration(rand.IntN(3000))*time.Microsecond)
				defer stop()
				_ = Do(With(ctx, q), func() error {
					n := inside.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					for range 1000 * rand.IntN(100) {
						_ = n
					}
					inside.Add(-1)
					return nil
				})
			})
		}
	}
	all.Wait()
	if most.Load() > places || ts.free != places || len(ts.waiting) != 0 {
		t.Errorf("%d were inside at once, %d places are free, %d queues wait", most.Load(), ts.free, len(ts.waiting))
	}
}
