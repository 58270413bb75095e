package storm

import (
	"context"
	"fmt"
	"time"
)

// parts is in how many equal parts guests are added.
const parts = 10

// thousand adds guests in equal parts, and takes at each number what one more
// costs, what calls about all of them take, and what the daemon takes for
// itself. Then it takes them away in the same parts.
func (t *turn) thousand(ctx context.Context) error {
	all := t.cell.Guests
	marks := []int{0}
	for i := 1; i <= parts; i++ {
		if mark := all * i / parts; mark > marks[len(marks)-1] {
			marks = append(marks, mark)
		}
	}
	defer func() { t.cell.Guests = all }()
	before := t.machine.Memory("MemAvailable")
	for i, mark := range marks[1:] {
		t.cell.Guests = mark
		if now := t.machine.Memory("MemAvailable"); marks[i] > 0 && now < before && t.target.at.Local() {
			if err := t.fits(mark-marks[i], (before-now)/uint64(marks[i])); err != nil {
				return err
			}
		}
		if err := t.grow(ctx, marks[i], mark); err != nil {
			return err
		}
	}
	if t.target.Kind != Direct {
		if err := t.idle(ctx); err != nil {
			return err
		}
	}
	for i := len(marks) - 1; i > 0; i-- {
		t.cell.Guests = marks[i]
		if err := t.part(ctx, MetricDestroy, marks[i-1], marks[i], t.destroy); err != nil {
			return err
		}
		if t.target.Kind == Direct {
			continue
		}
		if err := t.part(ctx, MetricUndefine, marks[i-1], marks[i], t.undefine); err != nil {
			return err
		}
	}
	return nil
}

func (t *turn) grow(ctx context.Context, first, last int) error {
	if t.target.Kind == Direct {
		return t.part(ctx, MetricStart, first, last, t.start)
	}
	if err := t.part(ctx, MetricDefine, first, last, t.define); err != nil {
		return err
	}
	if err := t.part(ctx, MetricStart, first, last, t.start); err != nil {
		return err
	}
	if err := t.look(); err != nil {
		return err
	}
	return t.overview(ctx)
}

// part is a storm of which also the time by its guests is kept.
func (t *turn) part(ctx context.Context, metric Metric, first, last int, do func(ctx context.Context, client, guest int) error) error {
	begin := time.Now()
	err := t.storm(ctx, metric, first, last, do)
	if err == nil {
		t.sample(metric+"."+MetricEach, Seconds, time.Since(begin).Seconds()/float64(last-first))
	}
	return err
}

// rest is how many windows nobody asks anything before a daemon counts as idle:
// it may go on for a while with what it does for those who asked lately.
const rest = 35

// idle takes the daemon's share of a core while nobody has asked it anything for
// a while.
func (t *turn) idle(ctx context.Context) error {
	if _, ok := t.daemonTime(); !ok {
		return nil
	}
	if err := t.wait(ctx, rest*t.Window); err != nil {
		return err
	}
	before, ok := t.daemonTime()
	begin := time.Now()
	if err := t.wait(ctx, 5*t.Window); err != nil {
		return err
	}
	if after, still := t.daemonTime(); ok && still {
		return t.in(Idle, func() error {
			t.sample(MetricProcessor, Share, (after-before)/time.Since(begin).Seconds())
			return nil
		})
	}
	return nil
}

func (t *turn) wait(ctx context.Context, d time.Duration) error {
	window, stop := context.WithTimeout(ctx, d)
	defer stop()
	<-window.Done()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// overview takes calls about all guests, and how long an event needs.
func (t *turn) overview(ctx context.Context) error {
	conns, err := t.dial(ctx, 1)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	p := &prober{turn: t, conn: conns[0]}
	for _, one := range []struct {
		metric Metric
		do     func(context.Context) error
	}{
		{MetricList, func(ctx context.Context) error { _, err := list(ctx, conns[0], 0); return err }},
		{MetricStats, func(ctx context.Context) error { _, err := allStats(ctx, conns[0], 0); return err }},
		{MetricInfo, func(ctx context.Context) error { return info(ctx, conns[0], t.domains[eventGuest]) }},
		{MetricEvent, func(ctx context.Context) error { return p.hear(ctx, t.domains[eventGuest]) }},
	} {
		results := t.repeat(ctx, asks, func(ctx context.Context) result { return t.time(ctx, one.do) })
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		t.record(one.metric, results)
		if err := firstError(results); err != nil {
			return fmt.Errorf("%s with %d guests: %w", one.metric, t.cell.Guests, err)
		}
	}
	return p.calm(ctx)
}
