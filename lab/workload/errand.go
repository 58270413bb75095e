package workload

import (
	"context"
	"time"
)

// errand is a load of one piece: a database is filled, or read through. It tells
// how far it is, interval by interval, and what it fails by is its error.
type errand struct {
	within Duration
	do     func(ctx context.Context, m *meter) error
}

// longErrand bounds those for which no time was given.
const longErrand = Duration(24 * time.Hour)

func newErrand(within Duration, do func(ctx context.Context, m *meter) error) (Load, error) {
	orElse(&within, longErrand)
	if within < 0 || time.Duration(within) > maxDuration {
		return nil, invalid("within is %v: more than none and at most %v are possible", time.Duration(within), maxDuration)
	}
	return &errand{within, do}, nil
}

// Run does the errand.
func (e *errand) Run(ctx context.Context, out func(Interval)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(e.within), errLate)
	defer cancel()
	m := newMeter(true)
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = e.do(ctx, m)
	}()
	tell(m, time.Second, ended, out)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
