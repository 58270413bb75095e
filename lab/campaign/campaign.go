// Package campaign makes a run out of names: a scenario, daemons, an image and a
// directory become a record, and a record that was left is gone on with or cleaned
// up after.
//
// What belongs here: checks before anything is made, and the beginning and end of
// a run. What does not: what is done in it (experiment), and pages.
package campaign

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/site"
	"github.com/lodge-kvm/lodge/lab/storm"
	"github.com/lodge-kvm/lodge/lab/target"
	"github.com/lodge-kvm/lodge/lab/tuning"
)

// Options say what is to be run.
type Options struct {
	Scenario string              // that ships, or a file
	Profile  string              // of it
	Targets  []storm.Target      // Name and Address
	To       string              // address of the daemon that guests are migrated to
	Dir      string              // for the record; must not hold one
	Images   string              // cache of guest images
	Files    string              // directory for the guests' files, which the daemons can read
	Only     map[string][]string // axes to the values that are kept
	Fit      bool                // leave out the steps that do not fit
	// Repetitions are those of the run, instead of the scenario's; 0 leaves them.
	Repetitions int
	Seed        uint64
	Command     string // that makes such a run
	Version     string // of the lab
	Say         func(experiment.Progress)
}

// Run begins a run and does it.
func Run(ctx context.Context, o Options) error {
	s, err := scenario.Open(o.Scenario)
	if err != nil {
		return err
	}
	plan, err := s.Plan(o.Profile)
	if err != nil {
		return err
	}
	if plan.Storm != nil {
		return weather(ctx, o, s, plan.Storm)
	}
	narrowed, err := narrow(plan, o.Only)
	if err != nil {
		return err
	}
	repeated, err := repeat(plan, o.Repetitions)
	if err != nil {
		return err
	}
	i, err := image.Find(o.Images)
	if err != nil {
		return err
	}
	targets, err := connect(ctx, o.Targets)
	if err != nil {
		return err
	}
	defer closeAll(targets)
	to, err := elsewhere(ctx, plan, targets, o.To)
	if err != nil {
		return err
	}
	defer leave(to)
	g := newGrounds(plan, targets, to, i, o.Files)
	left, err := fit(ctx, plan, g.sites, o.Fit)
	if err != nil {
		return err
	}
	header := o.header(s, plan, targets, i)
	if to != nil {
		header.To = &to.Target
	}
	header.Deviations = slices.Concat(narrowed, repeated, left)
	w, err := record.Create(o.Dir, header)
	if err != nil {
		return err
	}
	return do(ctx, w, s, plan, g, i, o.Say)
}

// narrow keeps a slice, and says so.
func narrow(plan *scenario.Plan, only map[string][]string) ([]string, error) {
	if len(only) == 0 {
		return nil, nil
	}
	var words []string
	for axis, values := range only {
		words = append(words, "only "+axis+"="+strings.Join(values, ","))
	}
	slices.Sort(words)
	return words, plan.Narrow(only)
}

// repeat changes how often a plan is gone through, and says so.
func repeat(plan *scenario.Plan, times int) ([]string, error) {
	if times == 0 || times == plan.Repetitions {
		return nil, nil
	}
	words := fmt.Sprintf("%d repetitions instead of %d", times, plan.Repetitions)
	return []string{words}, plan.Repeat(times)
}

func connect(ctx context.Context, named []storm.Target) ([]*target.Target, error) {
	var all []*target.Target
	for _, n := range named {
		t, err := target.Connect(ctx, n.Name, n.Address)
		if err != nil {
			closeAll(all)
			return nil, err
		}
		all = append(all, t)
	}
	if err := together(all); err != nil {
		closeAll(all)
		return nil, err
	}
	return all, nil
}

func closeAll(targets []*target.Target) {
	for _, t := range targets {
		t.Close()
	}
}

// destination is how the daemon is called that guests are migrated to.
const destination = "destination"

// elsewhere connects to the daemon that a plan's guests are migrated to, and sees
// that all concerned can do that; nil when no guest is.
func elsewhere(ctx context.Context, plan *scenario.Plan, targets []*target.Target, address string) (*target.Target, error) {
	switch migrates := plan.Migrates(); {
	case migrates && address == "":
		return nil, fault.New(fault.Invalid, fault.Config, "the scenario migrates guests: say with --to to which daemon")
	case !migrates && address != "":
		return nil, fault.New(fault.Invalid, fault.Config, "the scenario migrates no guests: --to has no use")
	case !migrates:
		return nil, nil
	}
	for _, from := range targets {
		if from.Away() {
			return nil, fault.New(fault.Unsupported, fault.Host, "guests of %s are not migrated: the lab moves them between daemons of its own host only", from.Name)
		}
	}
	to, err := target.Connect(ctx, destination, address)
	if err != nil {
		return nil, err
	}
	for _, from := range targets {
		if err := from.Migrates(ctx, to); err != nil {
			to.Close()
			return nil, err
		}
	}
	return to, nil
}

func leave(to *target.Target) {
	if to != nil {
		to.Close()
	}
}

// grounds are where roles can run.
type grounds struct {
	sites   map[string]*site.Site // by target
	outside *site.Outside         // of a guest; nil where no arm is
}

func newGrounds(plan *scenario.Plan, targets []*target.Target, to *target.Target, i image.Image, dir string) grounds {
	g := grounds{sites: map[string]*site.Site{}}
	for number, t := range targets {
		g.sites[t.Name] = site.New(t, number+1, to, i, dir)
	}
	if plan.Outside() {
		g.outside = site.NewOutside(targets, i, dir)
	}
	return g
}

// fit asks every site for its room.
func fit(ctx context.Context, plan *scenario.Plan, sites map[string]*site.Site, toTheLimit bool) (left []string, err error) {
	for _, s := range sites {
		room, err := s.Room(ctx)
		if err != nil {
			return nil, err
		}
		out, err := experiment.Fit(plan, room, toTheLimit)
		if err != nil {
			return nil, err
		}
		left = append(left, out...)
	}
	return left, nil
}

func (o *Options) header(s *scenario.Scenario, plan *scenario.Plan, targets []*target.Target, i image.Image) record.Header {
	here := machine.Machine{Root: "/"}
	h := record.Header{
		ID: "lab-" + strings.ToLower(rand.Text()[:8]), Started: time.Now().UTC(), Command: o.Command, Version: o.Version, Seed: o.Seed,
		Scenario: record.NewScenario(s.Name, s.Title, o.Profile, s.Text),
		Image:    record.Image{Digest: i.Digest, Packages: i.Packages},
		Host:     record.Host{Host: here.Host(), Settings: tuning.Host{Root: "/"}.Notable()},
	}
	var names []string
	if len(targets) > 0 && targets[0].Away() { // and so are all
		h.Host = record.Host{Host: targets[0].Machine()}
	}
	for _, t := range targets {
		h.Targets = append(h.Targets, t.Target)
		h.Host.Nodes, h.Host.Accelerator = max(h.Host.Nodes, len(t.Cells)), t.Accelerator
		names = append(names, t.Name)
	}
	h.Plan = experiment.Describe(plan, names, o.Seed)
	return h
}

func do(ctx context.Context, w *record.Writer, s *scenario.Scenario, plan *scenario.Plan, g grounds, i image.Image, say func(experiment.Progress)) error {
	o := experiment.Options{Scenario: s, Plan: plan, Sites: map[string]experiment.Site{}, Root: "/", Say: say}
	for name, one := range g.sites {
		o.Sites[name] = one
	}
	if g.outside != nil {
		o.Outside = g.outside
	}
	err := experiment.Do(ctx, w, o)
	return errors.Join(err, i.GiveBack())
}

// Resume goes on with a run that was killed or stopped, after taking away what it
// left.
func Resume(ctx context.Context, o Options) error {
	header, err := record.Peek(o.Dir)
	if err != nil {
		return err
	}
	var changed []string
	if err := Clean(ctx, o.Dir, o.Files, func(text string) { changed = append(changed, text) }); err != nil {
		return err
	}
	s, err := scenario.Parse([]byte(header.Scenario.Text))
	if err != nil {
		return err
	}
	plan, err := s.Plan(header.Scenario.Profile)
	if err != nil {
		return err
	}
	i, err := image.Find(o.Images)
	if err != nil {
		return err
	}
	if i.Digest != header.Image.Digest {
		return fault.New(fault.WrongState, fault.Host, "the guests' image is %s now, and the run began with %s: values of both cannot stand in one run", i.Digest, header.Image.Digest)
	}
	targets, err := connect(ctx, addresses(header.Targets))
	if err != nil {
		return err
	}
	defer closeAll(targets)
	address := ""
	if header.To != nil {
		address = header.To.URI
	}
	to, err := elsewhere(ctx, plan, targets, address)
	if err != nil {
		return err
	}
	defer leave(to)
	w, err := record.Resume(o.Dir)
	if err != nil {
		return err
	}
	for _, text := range changed {
		err = errors.Join(err, w.Event(record.Event{Time: time.Now(), Kind: record.Bad, What: "tuning", Text: text}))
	}
	if err != nil {
		w.Close()
		return err
	}
	return do(ctx, w, s, plan, newGrounds(plan, targets, to, i, o.Files), i, o.Say)
}

func addresses(targets []record.Target) (all []storm.Target) {
	for _, t := range targets {
		all = append(all, storm.Target{Name: t.Name, Address: t.URI})
	}
	return all
}

// Clean takes away what a run that does not run any more has left: guests, pools
// and networks at its daemons, control groups, files, settings of this host. Settings
// that somebody else has changed meanwhile are left, and said.
func Clean(ctx context.Context, dir, files string, say func(string)) error {
	header, err := record.Peek(dir)
	if err != nil {
		return err
	}
	journal, err := experiment.OpenJournal(dir)
	if err != nil {
		return err
	}
	targets, left := journal.Left()
	if !left {
		return nil
	}
	// A run that still goes has the record, and its guests are not ours to take.
	release, err := record.Hold(dir)
	if err != nil {
		return err
	}
	defer release()
	changed, failed := journal.Restore(tuning.Host{Root: "/"})
	for _, text := range changed {
		say(text)
	}
	for _, described := range targets {
		t, err := target.Connect(ctx, described.Name, described.URI)
		if err == nil {
			err = site.Clean(ctx, t, header.ID, 1+slices.IndexFunc(header.Targets, func(one record.Target) bool { return one.Name == t.Name }), files)
			t.Close()
		}
		failed = errors.Join(failed, err)
	}
	if journal.Outside() {
		failed = errors.Join(failed, site.CleanOutside(header.ID, files))
	}
	if failed != nil {
		return fmt.Errorf("cannot take away all that %s has left: %w", header.ID, failed)
	}
	return journal.Forget()
}

// Found is a run below a directory.
type Found struct {
	Dir string
	record.Header
	Left bool // something may be left of it
}

// List finds the runs right below a directory, oldest first.
func List(root string) ([]Found, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot look for runs")
	}
	var all []Found
	for _, e := range entries {
		f := Found{Dir: filepath.Join(root, e.Name())}
		if f.Header, err = record.Peek(f.Dir); err != nil {
			continue // something else
		}
		if j, err := experiment.OpenJournal(f.Dir); err != nil {
			f.Left = true
		} else {
			_, f.Left = j.Left()
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Found) int { return a.Started.Compare(b.Started) })
	return all, nil
}
