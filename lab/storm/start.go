package storm

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// starts defines, starts, destroys and undefines all guests; while they run,
// the daemon is looked at.
func (t *turn) starts(ctx context.Context) error {
	n := t.cell.Guests
	if t.target.Kind == Direct {
		if err := t.storm(ctx, MetricStart, 0, n, t.start); err != nil {
			return err
		}
		return t.storm(ctx, MetricDestroy, 0, n, t.destroy)
	}
	if err := t.storm(ctx, MetricDefine, 0, n, t.define); err != nil {
		return err
	}
	if err := t.storm(ctx, MetricStart, 0, n, t.start); err != nil {
		return err
	}
	if err := t.look(); err != nil {
		return err
	}
	if err := t.storm(ctx, MetricDestroy, 0, n, t.destroy); err != nil {
		return err
	}
	return t.storm(ctx, MetricUndefine, 0, n, t.undefine)
}

// defines defines and undefines all guests.
func (t *turn) defines(ctx context.Context) error {
	if err := t.storm(ctx, MetricDefine, 0, t.cell.Guests, t.define); err != nil {
		return err
	}
	return t.storm(ctx, MetricUndefine, 0, t.cell.Guests, t.undefine)
}

// saves starts all guests, saves them, starts them from what was saved, and
// destroys them.
func (t *turn) saves(ctx context.Context) error {
	n := t.cell.Guests
	if err := t.quietly(ctx, 0, n, t.define, t.start); err != nil {
		return err
	}
	err := t.storm(ctx, MetricSave, 0, n, func(ctx context.Context, client, guest int) error {
		return save(ctx, t.clients[client], t.domains[guest])
	})
	if err != nil {
		return err
	}
	if err := t.storm(ctx, MetricRestore, 0, n, t.start); err != nil {
		return err
	}
	return t.quietly(ctx, 0, n, t.destroy, t.undefine)
}

// asks is how often the statistics are asked for, at most.
const asks = 20

// statistics asks for the statistics of all guests: while all are well, and
// while a tenth of them is stopped.
func (t *turn) statistics(ctx context.Context) error {
	n := t.cell.Guests
	if err := t.quietly(ctx, 0, n, t.define, t.start); err != nil {
		return err
	}
	for _, one := range []struct {
		name    Case
		flags   uint32
		stopped bool
	}{{Idle, 0, false}, {NoWait, statsNoWait, false}, {StoppedNoWait, statsNoWait, true}, {Stopped, 0, true}} {
		if err := t.in(one.name, func() error { return t.askStats(ctx, one.flags, one.stopped) }); err != nil {
			return err
		}
	}
	return t.quietly(ctx, 0, n, t.destroy, t.undefine)
}

func (t *turn) askStats(ctx context.Context, flags uint32, stopped bool) error {
	if stopped {
		if err := t.halt(t.tenth(0)...); err != nil {
			return err
		}
	}
	conns, err := t.dial(ctx, 1)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	// What a stopped QEMU does to a daemon may show late: the calls are spread.
	again := time.NewTicker(t.Window / asks)
	defer again.Stop()
	results := t.repeat(ctx, asks, func(ctx context.Context) result {
		select {
		case <-again.C:
		case <-ctx.Done():
		}
		return t.time(ctx, func(ctx context.Context) error {
			n, err := allStats(ctx, conns[0], flags)
			if err == nil && n < t.cell.Guests {
				err = fmt.Errorf("statistics of %d guests, and %d run", n, t.cell.Guests)
			}
			return err
		})
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t.record(MetricStats, results)
	if last := results[len(results)-1]; last.cut() {
		t.blocked(MetricStats, last.took, "no answer to one call")
	}
	if !stopped {
		return nil
	}
	if err := t.release(); err != nil {
		return err
	}
	// What still hangs is answered now, before the next case begins.
	settled := t.time(ctx, func(ctx context.Context) error { _, err := allStats(ctx, t.clients[0], 0); return err })
	return settled.err
}

// cut reports whether the call outlasted the lab's patience.
func (r result) cut() bool { return errors.Is(r.err, errCut) }
