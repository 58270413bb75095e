package storm

import (
	"context"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/remote"
)

// MetricLeft is how many descriptors more than before the daemon has after all
// connections have ended.
const MetricLeft Metric = "files.left"

// settle is how long a daemon has to give back what connections took.
const settle = 2 * time.Second

// connections has all clients connect, make a call and disconnect, again and
// again. None may be turned away.
func (t *turn) connections(ctx context.Context) error {
	closeAll(t.clients)
	t.clients = nil
	before := t.files(ctx, 0)
	window, stop := context.WithTimeout(ctx, t.Window)
	defer stop()
	var mu sync.Mutex
	var results []result
	var clients sync.WaitGroup
	begin := time.Now()
	for range t.Clients {
		clients.Go(func() {
			for window.Err() == nil {
				one := t.time(ctx, t.visit)
				mu.Lock()
				results = append(results, one)
				mu.Unlock()
				if one.cut() {
					return
				}
			}
		})
	}
	clients.Wait()
	wall := time.Since(begin)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t.record(MetricConnect, results)
	t.sample(MetricConnect+".rate", Rate, float64(done(results))/wall.Seconds())
	if t.target.pid != 0 {
		t.sample(MetricLeft, Count, float64(t.files(ctx, before)-before))
	}
	return nil
}

// visit is one connection, with one call on it.
func (t *turn) visit(ctx context.Context) error {
	c, err := remote.Dial(ctx, t.target.Address)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = list(ctx, c, listActive)
	return err
}

// files is how many descriptors the daemon has once they are no more than
// wanted, or after a while.
func (t *turn) files(ctx context.Context, wanted int) (n int) {
	ctx, stop := context.WithTimeout(ctx, settle)
	defer stop()
	again := time.NewTicker(settle / 100)
	defer again.Stop()
	last := -1
	for {
		n, _ = t.machine.Files(t.target.pid) // what cannot be read shows as 0
		if n <= wanted || wanted == 0 && n == last {
			return n
		}
		last = n
		select {
		case <-again.C:
		case <-ctx.Done():
			return n
		}
	}
}
