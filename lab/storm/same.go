package storm

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

// acts are what clients do to one and the same guest.
var acts = []struct {
	metric Metric
	do     func(context.Context, *remote.Conn, xdr.Domain) error
}{{MetricStart, start}, {MetricDestroy, destroy}, {MetricSuspend, suspend}, {MetricResume, resume}}

// same has all clients start, destroy, suspend and resume one guest as chance
// has it. A refusal because of what another client did is a conflict. Afterwards
// the guest must start and end as ever.
func (t *turn) same(ctx context.Context) error {
	if err := t.quietly(ctx, 0, 1, t.define); err != nil {
		return err
	}
	window, stop := context.WithTimeout(ctx, t.Window)
	defer stop()
	results := map[Metric][]result{}
	var mu sync.Mutex
	var clients sync.WaitGroup
	for client, conn := range t.clients {
		chance := rand.New(rand.NewPCG(t.Seed, uint64(t.cell.Turn)<<32|uint64(client)))
		clients.Go(func() {
			for window.Err() == nil {
				act := acts[chance.IntN(len(acts))]
				one := t.time(ctx, func(ctx context.Context) error { return act.do(ctx, conn, t.domains[0]) })
				mu.Lock()
				results[act.metric] = append(results[act.metric], one)
				mu.Unlock()
				if one.cut() {
					return
				}
			}
		})
	}
	clients.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, act := range acts {
		t.record(act.metric, results[act.metric])
	}
	return t.sane(ctx)
}

// sane starts and destroys the guest once more.
func (t *turn) sane(ctx context.Context) error {
	_ = destroy(ctx, t.clients[0], t.domains[0]) // it may be down
	one := t.time(ctx, func(ctx context.Context) error {
		if err := start(ctx, t.clients[0], t.domains[0]); err != nil {
			return err
		}
		return destroy(ctx, t.clients[0], t.domains[0])
	})
	t.record(MetricSane, []result{one})
	return one.err
}
