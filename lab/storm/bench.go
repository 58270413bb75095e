package storm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/machine"
)

// Options say what to measure.
type Options struct {
	Targets   []Target // daemons: Name, and Address; with Start the lab starts them, and ends them
	Direct    bool     // run the command lines of each daemon by themselves too
	Plan      []Step
	Repeats   int
	Clients   int
	Patience  time.Duration // with each call, and with a daemon's start
	Window    time.Duration // of calls that are repeated for a while
	Seed      uint64
	Directory string // for the guests' disks, which every daemon must be able to open: on its host
	Command   string // that makes such a run, to be kept with it
	Version   string // of the lab
	Log       *slog.Logger
}

// spares are guests that a scenario has besides the storm's.
const spares = 2

// bench is a run that is under way.
type bench struct {
	Options
	machine machine.Machine
	dir     string // of disks and bare runs, on this host
	prefix  string // of the guests' names
	targets []*target
	rand    *mathrand.Rand
	run     *Run
	own     map[shape]uint64 // bytes of memory that one such guest takes
}

// Do makes a run. Where it is interrupted it gives what it has together with
// the reason; it has then tidied up all the same.
func Do(ctx context.Context, o Options) (run *Run, err error) {
	if err := checkAddresses(o); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.near(), "lodge-storm-")
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make a directory for disks")
	}
	// A daemon may run QEMU under another account, which must come by.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, errors.Join(fault.Wrap(err, fault.Failed, fault.Host, "cannot open the directory for disks"), os.RemoveAll(dir))
	}
	b := &bench{
		Options: o, machine: machine.Machine{Root: "/"}, dir: dir, prefix: "lab-" + rand.Text()[:8] + "-",
		rand: mathrand.New(mathrand.NewPCG(o.Seed, 0)), own: map[shape]uint64{},
	}
	b.run = &Run{Header: Header{
		Schema: Schema, Started: time.Now().UTC().Truncate(time.Second), Command: o.Command, Version: o.Version, Seed: o.Seed,
		Host: b.machine.Host(), Plan: o.Plan, Repeats: o.Repeats, Clients: o.Clients, Patience: o.Patience.Seconds(),
	}}
	defer func() { err = errors.Join(err, b.close(context.WithoutCancel(ctx)), os.RemoveAll(dir)) }()
	before, begin := b.machine.Ticks(), time.Now()
	err = b.all(ctx)
	b.run.End = Ending{Took: time.Since(begin).Seconds(), Load: b.machine.Load(), Steal: b.machine.Ticks().StealSince(before)}
	if err != nil {
		b.run.End.Interrupted = err.Error()
	}
	return b.run, err
}

// close looks once more that no daemon has a guest of this run, as one that was
// blocked might have made late, and ends the daemons that the lab has started.
func (b *bench) close(ctx context.Context) error {
	var all error
	for _, t := range b.targets {
		if t.Kind == Daemon {
			last := &turn{bench: b, target: t}
			all = errors.Join(all, last.clear(ctx), last.dropDisks(ctx), t.close())
		}
	}
	return all
}

func (b *bench) name(guest int) string { return fmt.Sprintf("%s%04d", b.prefix, guest) }

// place is the directory of a guest that is run bare.
func (b *bench) place(guest int) string { return filepath.Join(b.dir, b.name(guest)) }

func (b *bench) makePlace(s shape, guest int) error {
	if err := os.MkdirAll(b.place(guest), 0o700); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot make a directory for bare runs")
	}
	return s.makeDisks(b.dir, b.name(guest))
}

// all meets the targets, and goes through the plan.
func (b *bench) all(ctx context.Context) error {
	for _, t := range b.Targets {
		one, err := b.meet(ctx, t)
		if err != nil {
			return fmt.Errorf("target %s: %w", t.Name, err)
		}
		b.targets = append(b.targets, one)
	}
	if err := b.warmUp(ctx); err != nil {
		return err
	}
	for _, t := range b.targets {
		b.run.Targets = append(b.run.Targets, t.Target)
	}
	return b.turns(ctx)
}

// turns does every step of the plan on every target, repetition by repetition.
func (b *bench) turns(ctx context.Context) error {
	p := b.progress()
	turn := 0
	for repeat := 1; repeat <= b.Repeats; repeat++ {
		for _, step := range b.Plan {
			for _, t := range b.order() {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if !t.does(step.Scenario) {
					continue
				}
				turn++
				cell := Cell{
					Scenario: step.Scenario, Target: t.Name, Repeat: repeat, Turn: turn,
					Guests: step.Guests, Disks: step.Disks, Clients: b.Clients,
				}
				p.begin(t, step, cell)
				b.one(ctx, t, step, cell)
				p.end()
			}
		}
	}
	return nil
}

// restarts tells whether the lab has started any of the daemons: only those are meant to be
// killed.
func (b *bench) restarts() bool {
	return slices.ContainsFunc(b.targets, func(t *target) bool { return t.Start != "" })
}

// order is that in which the targets have their turns: drawn anew each time.
func (b *bench) order() []*target {
	order := slices.Clone(b.targets)
	b.rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// one takes one turn. What goes wrong with it is kept, and the rest goes on,
// but not with a target of which something is left.
func (b *bench) one(ctx context.Context, t *target, step Step, cell Cell) {
	err := t.broken
	if err == nil {
		err = b.take(ctx, t, cell, step.shape())
	}
	if errors.Is(err, errLeft) && t.broken == nil {
		t.broken = err
	}
	if err == nil || ctx.Err() != nil && !errors.Is(err, errLeft) {
		return
	}
	b.run.Skipped = append(b.run.Skipped, Skipped{Cell: cell, Reason: err.Error(), Unasked: errors.Is(err, errSpared) && b.restarts()})
	b.Log.Warn("not finished", "target", t.Name, "scenario", cell.Scenario, "guests", cell.Guests, "disks", cell.Disks, "reason", err)
}
