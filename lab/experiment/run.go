package experiment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
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
	Outside  Site            // of the arms that run outside of a guest; nil if there is none
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

// joined is a scenario's arm at a target.
type joined struct {
	record.Arm
	setting int // the number of the scenario's arm
}

// join joins the scenario's arms with the targets: each arm at each target, but for
// those outside of a guest, which are there once and at none.
func join(plan *scenario.Plan, targets []string) (all []joined) {
	for i, arm := range plan.Arms {
		if arm.Native {
			all = append(all, joined{record.Arm{Name: arm.Name, Set: arm.Text(), Native: true}, i})
			continue
		}
		for _, target := range targets {
			name := arm.Name
			if len(targets) > 1 {
				name += "@" + target
			}
			all = append(all, joined{record.Arm{Name: name, Target: target, Set: arm.Text()}, i})
		}
	}
	return all
}

// Describe puts a plan into the form of a record, with the order of its turns.
func Describe(plan *scenario.Plan, targets []string, seed uint64) record.Plan {
	p := record.Plan{
		Repetitions: plan.Repetitions, Windows: plan.Windows, Warmup: plan.Warmup.Least.Seconds(), Measure: plan.Measure.Seconds(),
	}
	for _, arm := range join(plan, targets) {
		p.Arms = append(p.Arms, arm.Arm)
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
	p.Loads = loads(plan)
	p.Turns = order(p, seed)
	return p
}

// loads are those of any arm and step, by name.
func loads(plan *scenario.Plan) (all []record.PlannedLoad) {
	for _, row := range plan.Setups {
		for _, setup := range row {
			for _, l := range setup.Loads {
				if !slices.ContainsFunc(all, func(known record.PlannedLoad) bool { return known.Name == l.Name }) {
					all = append(all, record.PlannedLoad{Name: l.Name, Kind: l.Kind, About: l.About, From: l.From, To: l.To, Open: l.Config["mode"] == "open"})
				}
			}
		}
	}
	return all
}

// order draws the order of the steps, and of the arms of each step, which are set side
// by side; every second repetition goes through all that the other way round. So none is
// always the first, what drifts weighs on all, and two steps differ by what they are and
// not by when they come: what reports say of chance wants no less.
func order(p record.Plan, seed uint64) []record.Turn {
	draw := rand.New(rand.NewPCG(seed, 0))
	var turns, drawn []record.Turn
	for repetition := range p.Repetitions {
		if repetition%2 == 0 {
			drawn = nil
			for _, step := range draw.Perm(len(p.Steps)) {
				for _, arm := range draw.Perm(len(p.Arms)) {
					drawn = append(drawn, record.Turn{Arm: p.Arms[arm].Name, Step: p.Steps[step].Name})
				}
			}
		} else {
			slices.Reverse(drawn)
		}
		for _, turn := range drawn {
			turn.Repetition = repetition + 1
			turns = append(turns, turn)
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
	opened  []Site
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
	r := &run{Options: o, w: w, host: tuning.Host{Root: o.Root}, began: time.Now()}
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
	for _, s := range r.opened {
		all = errors.Join(all, s.Close(ctx))
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

// site finds an arm's: that of its target, or the one outside of guests.
func (r *run) site(arm record.Arm) (Site, error) {
	s := r.Sites[arm.Target]
	if arm.Native {
		s = r.Outside
	}
	if s == nil {
		return nil, fault.New(fault.NotFound, fault.Host, "the run has an arm %s at target %q, and none was given", arm.Name, arm.Target)
	}
	return s, nil
}

// open opens an arm's site when it is first needed.
func (r *run) open(ctx context.Context, arm record.Arm, s Site) error {
	if slices.Contains(r.opened, s) {
		return nil
	}
	if arm.Native {
		if err := r.journal.MadeOutside(); err != nil {
			return err
		}
	}
	for _, target := range s.Describe() {
		if err := r.journal.Made(target); err != nil {
			return err
		}
	}
	r.opened = append(r.opened, s)
	return s.Open(ctx, r.w.Header.ID)
}

// setup finds what a turn is of.
func (r *run) setup(turn record.Turn) (*scenario.Setup, record.Arm, error) {
	var targets []string
	for _, arm := range r.w.Header.Plan.Arms {
		if !arm.Native && !slices.Contains(targets, arm.Target) {
			targets = append(targets, arm.Target)
		}
	}
	arms := join(r.Plan, targets)
	arm := slices.IndexFunc(arms, func(a joined) bool { return a.Name == turn.Arm })
	step := slices.IndexFunc(r.Plan.Steps, func(s scenario.Step) bool { return s.Name == turn.Step })
	if arm < 0 || step < 0 {
		return nil, record.Arm{}, fault.New(fault.Invalid, fault.Host, "the scenario has no turn %v", turn)
	}
	return r.Plan.Setups[arms[arm].setting][step], arms[arm].Arm, nil
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
