package experiment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/telemetry"
	"github.com/lodge-kvm/lodge/lab/tuning"
)

// Options are what a run is made of besides its record.
type Options struct {
	Scenario *scenario.Scenario
	Plan     *scenario.Plan
	Sites    map[string]Site // by the name of the target
	Root     string          // "/" of this host, for its settings and counters
	Booting  int             // guests that boot at once; 4 if nothing is said
	Say      func(Progress)  // told what goes on; may be nil
}

// Progress is how far a run is.
type Progress struct {
	Done, Turns int
	Turn        record.Turn
	Text        string
	Left        time.Duration // estimated; 0 if not known yet
}

// Arms joins the scenario's arms with the targets: each arm at each target.
func Arms(plan *scenario.Plan, targets []string) []record.Arm {
	var all []record.Arm
	for _, arm := range plan.Arms {
		for _, target := range targets {
			name := arm.Name
			if len(targets) > 1 {
				name += "@" + target
			}
			all = append(all, record.Arm{Name: name, Target: target, Set: arm.Text()})
		}
	}
	return all
}

// Describe puts a plan into the form of a record, with the order of its turns.
func Describe(plan *scenario.Plan, targets []string, seed uint64) record.Plan {
	p := record.Plan{
		Arms: Arms(plan, targets), Repetitions: plan.Repetitions, Windows: plan.Windows,
		Warmup: plan.Warmup.Least.Seconds(), Measure: plan.Measure.Seconds(),
	}
	if w := plan.Warmup; !w.Fixed() {
		p.Steady = &record.Steady{Most: w.Most.Seconds(), Within: w.Steady, Window: w.Window.Seconds()}
	}
	for _, s := range plan.Steps {
		p.Steps = append(p.Steps, record.Step{Name: s.Name, Axes: s.Axes})
	}
	for _, b := range plan.Bounds {
		p.Bounds = append(p.Bounds, record.Bound{Metric: b.Metric, Labels: b.Labels, Below: b.Below, Above: b.Above, Unit: b.Unit})
	}
	p.Turns = order(p, seed)
	return p
}

// order sets the arms of a step side by side, in an order drawn for each
// repetition and step; every second repetition has it, and the order of the steps,
// the other way round, so that none is always the first and what drifts weighs on all.
func order(p record.Plan, seed uint64) []record.Turn {
	draw := rand.New(rand.NewPCG(seed, 0))
	var turns []record.Turn
	drawn := make([][]int, len(p.Steps))
	for repetition := range p.Repetitions {
		for i := range p.Steps {
			if repetition%2 == 0 {
				drawn[i] = draw.Perm(len(p.Arms))
			} else {
				i = len(p.Steps) - 1 - i
				slices.Reverse(drawn[i])
			}
			for _, arm := range drawn[i] {
				turns = append(turns, record.Turn{Arm: p.Arms[arm].Name, Repetition: repetition + 1, Step: p.Steps[i].Name})
			}
		}
	}
	return turns
}

// run is one that goes on.
type run struct {
	Options
	w       *record.Writer
	journal *Journal
	host    tuning.Host
	began   time.Time
	opened  map[string]bool
}

// Do does every turn of a record that has not ended yet, and seals it. A run that
// is told to stop ends as interrupted, with all it made taken back, and can be
// resumed.
func Do(ctx context.Context, w *record.Writer, o Options) (err error) {
	if o.Booting == 0 {
		o.Booting = 4
	}
	if o.Say == nil {
		o.Say = func(Progress) {}
	}
	r := &run{Options: o, w: w, host: tuning.Host{Root: o.Root}, began: time.Now(), opened: map[string]bool{}}
	if r.journal, err = OpenJournal(w.Dir()); err != nil {
		return errors.Join(err, w.Seal(record.Interrupted))
	}
	defer func() {
		err = errors.Join(err, r.leave(context.WithoutCancel(ctx)))
		outcome := record.Complete
		if len(r.w.Finished()) < len(w.Header.Plan.Turns) {
			outcome = record.Interrupted
		}
		err = errors.Join(err, w.Seal(outcome))
	}()
	return r.turns(ctx)
}

func (r *run) turns(ctx context.Context) error {
	done := r.w.Finished()
	if len(done) > 0 {
		if err := r.w.Event(record.Event{Time: time.Now(), Kind: record.Resumed, Text: fmt.Sprintf("after %d turns of %d", len(done), len(r.w.Header.Plan.Turns))}); err != nil {
			return err
		}
	}
	before := len(done)
	for _, turn := range r.w.Header.Plan.Turns {
		if slices.Contains(done, turn) {
			continue
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		finished := len(r.w.Finished())
		r.Say(Progress{Done: finished, Turns: len(r.w.Header.Plan.Turns), Turn: turn, Text: "begins", Left: r.left(finished - before)})
		if err := r.turn(ctx, turn); err != nil {
			return err
		}
		if err := r.w.Finish(turn); err != nil {
			return err
		}
	}
	return nil
}

// left estimates by the turns of this process.
func (r *run) left(turns int) time.Duration {
	if turns == 0 {
		return 0
	}
	rest := len(r.w.Header.Plan.Turns) - len(r.w.Finished())
	return time.Since(r.began) / time.Duration(turns) * time.Duration(rest)
}

// leave takes back all that the run made and changed.
func (r *run) leave(ctx context.Context) error {
	var all error
	for name := range r.opened {
		all = errors.Join(all, r.Sites[name].Close(ctx))
	}
	left, err := r.journal.Restore(r.host)
	for _, text := range left {
		_ = r.w.Event(record.Event{Time: time.Now(), Kind: record.Bad, What: "tuning", Text: text})
	}
	if all = errors.Join(all, err); all != nil {
		return fault.Wrap(all, fault.Failed, fault.Host, "something of the run is left: lodge lab clean takes it away")
	}
	return r.journal.Forget()
}

// site finds a target's.
func (r *run) site(name string) (Site, error) {
	if s := r.Sites[name]; s != nil {
		return s, nil
	}
	return nil, fault.New(fault.NotFound, fault.Host, "the run has a target %q, and none was given", name)
}

// open opens a target's site when it is first needed.
func (r *run) open(ctx context.Context, name string) error {
	if r.opened[name] {
		return nil
	}
	for _, target := range r.Sites[name].Describe() {
		if err := r.journal.Made(target); err != nil {
			return err
		}
	}
	r.opened[name] = true
	return r.Sites[name].Open(ctx, r.w.Header.ID)
}

// setup finds what a turn is of.
func (r *run) setup(turn record.Turn) (*scenario.Setup, record.Arm, error) {
	plan := r.w.Header.Plan
	arm := slices.IndexFunc(plan.Arms, func(a record.Arm) bool { return a.Name == turn.Arm })
	step := slices.IndexFunc(r.Plan.Steps, func(s scenario.Step) bool { return s.Name == turn.Step })
	if arm < 0 || step < 0 {
		return nil, record.Arm{}, fault.New(fault.Invalid, fault.Host, "the scenario has no turn %v", turn)
	}
	targets := len(plan.Arms) / len(r.Plan.Arms)
	return r.Plan.Setups[arm/targets][step], plan.Arms[arm], nil
}

// watch reads the host once a second until ctx ends.
func (r *run) watch(ctx context.Context, turn record.Turn) {
	host := &telemetry.Host{Root: r.Root}
	host.Read(time.Now())
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			_ = r.w.Telemetry(record.Telemetry{Time: now, Turn: turn, Source: "host", Values: host.Read(now)})
		case <-ctx.Done():
			return
		}
	}
}
