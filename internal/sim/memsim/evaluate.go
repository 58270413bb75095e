package memsim

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
)

// Bounds of a load factor: beyond them the host is so small or large that nothing is decided.
const leastFactor, mostFactor = 1e-3, 1e3

// Evaluate runs a policy on traces, at the grid of load factors, or at the given absolute ones. Traces and factors run
// in parallel on all processors. It gives one report for each file, in order.
func Evaluate(ctx context.Context, files []string, setup *Setup, factors []float64) ([]*Report, error) {
	for _, factor := range factors {
		if !(factor >= leastFactor && factor <= mostFactor) {
			return nil, invalid("load factor %v is not between %v and %v", factor, leastFactor, mostFactor)
		}
	}
	reports := make([]*Report, len(files))
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(2 * runtime.GOMAXPROCS(0)) // traces in memory: enough to keep the processors busy
	for i, file := range files {
		all.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			tr, err := ReadFile(file)
			if err == nil {
				reports[i], err = evaluate(ctx, tr, setup, factors, turns)
			}
			return err
		})
	}
	return reports, all.Wait()
}

// evaluate runs one trace. Each run holds a turn.
func evaluate(ctx context.Context, tr *Trace, setup *Setup, factors []float64, turns chan struct{}) (*Report, error) {
	bound := tr.Bound()
	grid := factors
	if len(factors) == 0 {
		grid = Grid()
		factors = make([]float64, len(grid))
		for i, share := range grid {
			factors[i] = bound * share
		}
	}
	runs := make([]Metrics, len(factors))
	times := make([]time.Duration, len(factors))
	all, ctx := errgroup.WithContext(ctx)
	for i, factor := range factors {
		all.Go(func() error {
			select {
			case turns <- struct{}{}:
				defer func() { <-turns }()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			begin := time.Now()
			var err error
			runs[i], err = Run(tr, factor, setup)
			times[i] = time.Since(begin)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	wall := time.Duration(0)
	for _, t := range times {
		wall += t
	}
	return newReport(tr, setup.Text, bound, grid, factors, runs, wall), nil
}
