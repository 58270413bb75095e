package storm

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

const (
	leastWedge = 10 // guests, so that a tenth is one
	callers    = 25 // that hang on the stopped guests
	pace       = 20 * time.Millisecond
	hangPace   = 50 * time.Millisecond
)

// The guests that probes work with, by number; behind them come those that may
// be stopped, and last the spare ones.
const (
	eventGuest     = 0 // of events
	askedGuest     = 1 // of info
	suspendedGuest = 2 // of suspend and resume
	probed         = 3
)

// wedge makes calls of all kinds while all is well, and again while a tenth of
// the guests is stopped and callers hang on these. None of the calls is about a
// stopped guest, and so none should wait. At the end a stopped one is destroyed.
func (t *turn) wedge(ctx context.Context) error {
	n := t.cell.Guests
	if n < leastWedge {
		return fault.New(fault.Invalid, fault.Call, "a tenth of %d guests is none: this wants %d at least", n, leastWedge)
	}
	if err := t.quietly(ctx, 0, n, t.define, t.start); err != nil {
		return err
	}
	if err := t.quietly(ctx, n, n+1, t.define); err != nil { // the spare one that is started and destroyed
		return err
	}
	if err := t.in(Idle, func() error { return t.probe(ctx) }); err != nil {
		return err
	}
	stopped := t.tenth(probed)
	if err := t.halt(stopped...); err != nil {
		return err
	}
	return t.in(Wedged, func() error { return t.wedged(ctx, stopped) })
}

// wedged probes beside the callers that hang, and destroys a stopped guest.
func (t *turn) wedged(ctx context.Context, stopped []int) (err error) {
	conns, err := t.dial(ctx, callers)
	if err != nil {
		return err
	}
	hanging, enough := context.WithCancelCause(ctx)
	var mu sync.Mutex
	var results []result
	var group, begun sync.WaitGroup
	begun.Add(callers)
	for i, c := range conns {
		guest := t.domains[stopped[i%len(stopped)]]
		group.Go(func() {
			calls := hang(hanging, c, guest, i, begun.Done)
			mu.Lock()
			results = append(results, calls...)
			mu.Unlock()
		})
	}
	defer func() {
		enough(errCut)
		group.Wait()
		closeAll(conns)
		if ctx.Err() == nil {
			t.record(MetricHang, results)
		}
	}()
	begun.Wait()
	if err := t.probe(ctx); err != nil {
		return err
	}
	c, err := t.dial(ctx, 1)
	if err != nil {
		return err
	}
	defer closeAll(c)
	one := t.time(ctx, func(ctx context.Context) error { return destroy(ctx, c[0], t.domains[stopped[0]]) })
	t.record(MetricRelease, []result{one})
	if one.cut() {
		t.blocked(MetricRelease, one.took, "destroy of a stopped guest")
	}
	return context.Cause(ctx)
}

// hang asks a stopped guest for things that only its QEMU can tell or do, until
// the context ends. Begun is called just before the first question.
func hang(ctx context.Context, c *remote.Conn, guest xdr.Domain, number int, begun func()) (results []result) {
	questions := []func(context.Context, *remote.Conn, xdr.Domain) error{resume, memoryStats, askMonitor}
	question := questions[number%len(questions)]
	again := time.NewTicker(hangPace)
	defer again.Stop()
	for begun(); ctx.Err() == nil; {
		begin := time.Now()
		err := question(ctx, c, guest)
		results = append(results, result{time.Since(begin), err})
		// What is answered well did not ask the QEMU, and nobody hangs on it.
		if refused, ok := errors.AsType[*remote.Error](err); err == nil || ok && refused.Unsupported() {
			question = resume
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
	return results
}

// prober repeats calls of one kind over a connection of its own.
type prober struct {
	*turn
	conn    *remote.Conn
	round   func(context.Context, *prober) error
	results map[Metric][]result
	hearing bool // the connection is registered for events
	up      bool // the guest of the events runs
}

// rounds are what the probers do, each at its own pace, all at once.
var rounds = []func(context.Context, *prober) error{
	func(ctx context.Context, p *prober) error {
		return p.call(ctx, MetricList, func(ctx context.Context) error { _, err := list(ctx, p.conn, 0); return err })
	},
	func(ctx context.Context, p *prober) error {
		return p.call(ctx, MetricInfo, func(ctx context.Context) error { return info(ctx, p.conn, p.domains[askedGuest]) })
	},
	func(ctx context.Context, p *prober) error {
		return p.call(ctx, MetricStats, func(ctx context.Context) error { _, err := allStats(ctx, p.conn, 0); return err })
	},
	func(ctx context.Context, p *prober) error {
		d := p.domains[suspendedGuest]
		if err := p.call(ctx, MetricResume, func(ctx context.Context) error { return resume(ctx, p.conn, d) }); err != nil {
			return err
		}
		return p.call(ctx, MetricSuspend, func(ctx context.Context) error { return suspend(ctx, p.conn, d) })
	},
	func(ctx context.Context, p *prober) error {
		d := p.domains[p.cell.Guests]
		if err := p.call(ctx, MetricStart, func(ctx context.Context) error { return start(ctx, p.conn, d) }); err != nil {
			return err
		}
		return p.call(ctx, MetricDestroy, func(ctx context.Context) error { return destroy(ctx, p.conn, d) })
	},
	func(ctx context.Context, p *prober) (err error) {
		var d xdr.Domain
		guest := p.cell.Guests + 1
		if err := p.call(ctx, MetricDefine, func(ctx context.Context) error {
			d, err = define(ctx, p.conn, p.definitions[guest])
			return err
		}); err != nil {
			return err
		}
		return p.call(ctx, MetricUndefine, func(ctx context.Context) error { return undefine(ctx, p.conn, d) })
	},
	func(ctx context.Context, p *prober) error {
		return p.call(ctx, MetricEvent, func(ctx context.Context) error { return p.hear(ctx, p.domains[eventGuest]) })
	},
}

// probe makes calls of all kinds for a while, each kind over a connection of its
// own. A call that is blocked ends its kind.
func (t *turn) probe(ctx context.Context) error {
	conns, err := t.dial(ctx, len(rounds))
	if err != nil {
		return err
	}
	defer closeAll(conns)
	var probers []*prober
	var group sync.WaitGroup
	for i, round := range rounds {
		p := &prober{turn: t, conn: conns[i], round: round, results: map[Metric][]result{}}
		probers = append(probers, p)
		group.Go(func() { p.run(ctx) })
	}
	group.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, p := range probers {
		for _, metric := range []Metric{MetricList, MetricInfo, MetricStats, MetricResume, MetricSuspend, MetricStart, MetricDestroy, MetricDefine, MetricUndefine, MetricEvent} {
			results := p.results[metric]
			if len(results) == 0 {
				continue
			}
			t.record(metric, results)
			if last := results[len(results)-1]; last.cut() {
				t.blocked(metric, last.took, "one call, about a guest that is well")
			}
		}
	}
	return probers[len(probers)-1].calm(ctx)
}

// run does rounds until the window is over, or a call is cut.
func (p *prober) run(ctx context.Context) {
	window, stop := context.WithTimeout(ctx, p.Window)
	defer stop()
	again := time.NewTicker(pace)
	defer again.Stop()
	for !errors.Is(p.round(ctx, p), errCut) && ctx.Err() == nil {
		select {
		case <-again.C:
		case <-window.Done():
		}
		if window.Err() != nil {
			return
		}
	}
}

// call makes one call and keeps how it went.
func (p *prober) call(ctx context.Context, metric Metric, do func(context.Context) error) error {
	one := p.time(ctx, do)
	p.results[metric] = append(p.results[metric], one)
	return one.err
}

// hear suspends or resumes a guest, whichever changes it, and waits for the
// event that tells of it.
func (p *prober) hear(ctx context.Context, d xdr.Domain) error {
	if !p.hearing {
		if err := hearLifecycle(ctx, p.conn); err != nil {
			return err
		}
		p.hearing = true
	}
	change, tells := resume, int32(eventResumed)
	if p.up {
		change, tells = suspend, eventSuspended
	}
	if err := change(ctx, p.conn, d); err != nil {
		return err
	}
	p.up = !p.up
	for {
		select {
		case e := <-p.conn.Events():
			var m xdr.DomainEventCallbackLifecycleMsg
			if e.Proc == xdr.ProcDomainEventCallbackLifecycle && m.Decode(xdr.NewReader(e.Payload)) == nil && m.Msg.Domain.Name == d.Name && m.Msg.Event == tells {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// calm leaves the guest of the events paused, as it was.
func (p *prober) calm(ctx context.Context) error {
	if !p.up {
		return nil
	}
	one := p.time(ctx, func(ctx context.Context) error { return suspend(ctx, p.conn, p.domains[eventGuest]) })
	if one.cut() {
		p.blocked(MetricSuspend, one.took, "one call, about a guest that is well")
		return nil
	}
	return one.err
}
