package storm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/bare"
	"github.com/lodge-kvm/lodge/lab/machine"
)

// turn is one scenario with one target, once.
type turn struct {
	*bench
	target      *target
	cell        Cell
	shape       shape
	clients     []*remote.Conn  // of a daemon
	domains     []xdr.Domain    // by the guest's number, once defined
	definitions []string        // by the guest's number
	commands    []*bare.Command // by the guest's number, of the bare command line
	running     []*bare.Process // by the guest's number, of the bare command line
	halted      []*halted       // stopped QEMUs

	mu sync.Mutex // guards running
}

// scenarios are what turns do.
var scenarios = map[Scenario]func(*turn, context.Context) error{
	Start: (*turn).starts, Define: (*turn).defines, Stats: (*turn).statistics, Wedge: (*turn).wedge,
	Adopt: (*turn).adopt, Save: (*turn).saves, Connect: (*turn).connections, Same: (*turn).same, Thousand: (*turn).thousand,
}

// does reports whether a scenario means something for a target.
func (t *target) does(s Scenario) bool {
	return t.Kind == Daemon || s == Start || s == Thousand
}

// guests is how many a scenario has at once, those besides the storm's included.
func (c Cell) guests() int {
	switch c.Scenario {
	case Define, Connect:
		return 0
	case Same:
		return 1
	case Wedge:
		return c.Guests + spares
	default:
		return c.Guests
	}
}

// take has a scenario done and leaves nothing of it.
func (b *bench) take(ctx context.Context, target *target, cell Cell, shape shape) (err error) {
	if err := b.affords(target, cell, shape); err != nil {
		return err
	}
	t := &turn{bench: b, target: target, cell: cell, shape: shape}
	defer func() { err = errors.Join(err, t.clear(context.WithoutCancel(ctx))) }()
	if err := t.prepare(ctx, cell.Guests+spares); err != nil {
		return err
	}
	if target.Kind == Daemon {
		if t.clients, err = t.dial(ctx, cell.Clients); err != nil {
			return err
		}
	}
	if !target.at.Local() {
		if err := t.roomAfar(ctx); err != nil {
			return err
		}
	}
	t.tellUnseen()
	return scenarios[cell.Scenario](t, ctx)
}

// prepare makes what guests need of the lab, so that no clock runs while the lab
// does its own work.
func (t *turn) prepare(ctx context.Context, guests int) error {
	if !t.target.at.Local() && t.shape.disks > 0 {
		if err := t.makeDisksAfar(ctx, guests); err != nil {
			return err
		}
	}
	t.domains = make([]xdr.Domain, guests)
	t.definitions = make([]string, guests)
	t.commands = make([]*bare.Command, guests)
	t.running = make([]*bare.Process, guests)
	for i := range guests {
		if t.target.at.Local() {
			if err := t.makePlace(t.shape, i); err != nil {
				return err
			}
		}
		t.definitions[i] = t.shape.definition(t.target.dir, t.name(i))
		if t.target.Kind == Direct {
			t.commands[i] = t.target.commands[t.shape].For(t.name(i), t.place(i))
		}
	}
	return nil
}

// dial makes connections, one after the other.
func (t *turn) dial(ctx context.Context, n int) (all []*remote.Conn, err error) {
	ctx, stop := context.WithTimeoutCause(ctx, t.Patience, errCut)
	defer stop()
	for range n {
		c, err := remote.Dial(ctx, t.target.Address)
		if err != nil {
			closeAll(all)
			return nil, fmt.Errorf("connection %d of %d: %w", len(all)+1, n, err)
		}
		all = append(all, c)
	}
	return all, nil
}

func closeAll(conns []*remote.Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// The four things that are done to a guest, by a client.

func (t *turn) define(ctx context.Context, client, guest int) (err error) {
	t.domains[guest], err = define(ctx, t.clients[client], t.definitions[guest])
	return err
}

func (t *turn) undefine(ctx context.Context, client, guest int) error {
	return undefine(ctx, t.clients[client], t.domains[guest])
}

func (t *turn) start(ctx context.Context, client, guest int) error {
	if t.target.Kind == Daemon {
		return start(ctx, t.clients[client], t.domains[guest])
	}
	p, _, err := t.commands[guest].Run(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running[guest] = p
	return err
}

func (t *turn) destroy(ctx context.Context, client, guest int) error {
	if t.target.Kind == Daemon {
		return destroy(ctx, t.clients[client], t.domains[guest])
	}
	_, err := t.running[guest].End(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running[guest] = nil
	return err
}

// MetricPrepare is of what has to be done and is not measured: only what is
// blocked there is kept.
const MetricPrepare Metric = "prepare"

// quietly does some things to guests that are no part of what is measured.
func (t *turn) quietly(ctx context.Context, first, last int, steps ...func(ctx context.Context, client, guest int) error) error {
	for _, step := range steps {
		if err := t.storm(ctx, MetricPrepare, first, last, step); err != nil {
			return err
		}
	}
	return nil
}

func (t *turn) sample(metric Metric, unit Unit, value float64) {
	if metric != MetricPrepare {
		t.run.Samples = append(t.run.Samples, Sample{t.cell, metric, unit, value})
	}
}

func (t *turn) record(metric Metric, results []result) {
	if metric == MetricPrepare {
		return
	}
	for _, c := range group(metric, results, t.cell.Scenario == Same) {
		c.Cell = t.cell
		if err := c.pack(); err != nil {
			t.Log.Warn("cannot pack times", "metric", metric, "error", err)
		}
		t.run.Calls = append(t.run.Calls, c)
	}
}

func (t *turn) blocked(metric Metric, after time.Duration, text string) {
	t.run.Blocked = append(t.run.Blocked, Blocked{t.cell, metric, after.Seconds(), text})
	t.Log.Warn("still blocked", "target", t.target.Name, "scenario", t.cell.Scenario, "case", t.cell.Case, "metric", metric, "after", after.Round(time.Second/10))
}

// in does something while values belong to a case.
func (t *turn) in(c Case, do func() error) error {
	before := t.cell.Case
	t.cell.Case = c
	defer func() { t.cell.Case = before }()
	return do()
}

// daemonTime is what the daemon has taken of the processors; false where that
// cannot be told.
func (t *turn) daemonTime() (float64, bool) {
	if t.target.pid == 0 {
		return 0, false
	}
	took, err := machine.ProcessorTime(t.target.pid)
	return took, err == nil
}

// look takes what the daemon has of memory, threads and files.
func (t *turn) look() error {
	if t.target.pid == 0 {
		return nil
	}
	p, err := t.machine.Process(t.target.pid)
	if err != nil {
		return err
	}
	files, err := t.machine.Files(t.target.pid)
	if err != nil {
		return err
	}
	t.sample(MetricResident, Bytes, float64(p.Resident))
	t.sample(MetricPrivate, Bytes, float64(p.Private))
	t.sample(MetricThreads, Count, float64(p.Threads))
	t.sample(MetricFiles, Count, float64(files))
	return nil
}
