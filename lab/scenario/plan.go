package scenario

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Plan works out a profile.
func (s *Scenario) Plan(profile string) (*Plan, error) {
	vars, ok := s.file.Profiles[profile]
	if !ok {
		return nil, fault.New(fault.NotFound, fault.Config, "scenario %s has no profile %q: %s are there", s.Name, profile, strings.Join(s.Profiles(), ", "))
	}
	if !s.file.Storm.IsZero() {
		return s.stormPlan(vars)
	}
	p := &Plan{Repetitions: 1, Windows: 1}
	for _, one := range []struct {
		node *yaml.Node
		into any
	}{
		{&s.file.Repetitions, &p.Repetitions},
		{&s.file.Windows, &p.Windows},
		{&s.file.Warmup, &p.Warmup},
		{&s.file.Measure, &p.Measure},
		{&s.file.Arms, &p.Arms},
		{&s.file.Bounds, &p.Bounds},
	} {
		if err := read(one.node, vars, one.into); err != nil {
			return nil, err
		}
	}
	if len(p.Arms) == 0 {
		p.Arms = []Arm{{Name: "plain"}}
	}
	if err := s.steps(p, vars); err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	return p, s.setups(p, vars)
}

// read fills a part of the file in and decodes it; one that is not there stays
// as it is.
func read(node *yaml.Node, vars variables, into any) error {
	if node.IsZero() {
		return nil
	}
	filled, err := fill(node, vars)
	if err != nil {
		return err
	}
	return plain(filled.Decode(into))
}

func (p *Plan) check() error {
	switch {
	case p.Repetitions < 1 || p.Windows < 1 || p.Measure <= 0 || p.Warmup.Least < 0:
		return fault.New(fault.Invalid, fault.Config, "repetitions are %d, windows %d, measure %v, warmup %v: the first three want to be above none", p.Repetitions, p.Windows, p.Measure, p.Warmup.Least)
	case len(p.Arms)*len(p.Steps)*p.Repetitions > maxTurns:
		return fault.New(fault.Invalid, fault.Config, "%d arms, %d steps and %d repetitions are more than %d turns", len(p.Arms), len(p.Steps), p.Repetitions, maxTurns)
	}
	var names []string
	for _, a := range p.Arms {
		if a.Name == "" || slices.Contains(names, a.Name) {
			return wrong(a.line, "every arm wants a name of its own, and %q is none", a.Name)
		}
		names = append(names, a.Name)
	}
	if first := p.Arms[0]; !slices.ContainsFunc(p.Arms, func(a Arm) bool { return !a.Native }) {
		return wrong(first.line, "arm %s is native, and there is none of guests that it could stand beside", first.Name)
	}
	return nil
}

// steps are listed one by one, or are every place on the axes of a matrix.
func (s *Scenario) steps(p *Plan, vars variables) error {
	var places []variables
	if err := read(&s.file.Steps, vars, &places); err != nil {
		return err
	}
	if !s.file.Matrix.IsZero() {
		if places != nil {
			return wrong(s.file.Matrix.Line, "steps or matrix: not both")
		}
		var err error
		if places, err = s.matrix(vars); err != nil {
			return err
		}
	}
	if places == nil {
		places = []variables{{}}
	}
	names := map[string]bool{}
	same := fixed(places)
	for _, place := range places {
		step := Step{Axes: place.text(), vars: place}
		var words []string
		for _, axis := range slices.Sorted(maps.Keys(place)) {
			if place[axis].Kind != yaml.ScalarNode {
				return wrong(place[axis].Line, "axis %s of a step wants one value", axis)
			}
			if !same[axis] {
				words = append(words, axis+"="+place[axis].Value)
			}
		}
		step.Name = cmp.Or(strings.Join(words, " "), "all")
		if names[step.Name] {
			return wrong(s.file.Steps.Line, "step %s is there twice", step.Name)
		}
		names[step.Name] = true
		p.Steps = append(p.Steps, step)
	}
	return nil
}

// fixed are the axes along which nothing varies: they tell no step from another,
// and are left out of their names. One place alone is told by all of its axes.
func fixed(places []variables) map[string]bool {
	same := map[string]bool{}
	if len(places) < 2 {
		return same
	}
	for axis, first := range places[0] {
		same[axis] = !slices.ContainsFunc(places, func(place variables) bool { return place[axis] == nil || place[axis].Value != first.Value })
	}
	return same
}

// matrix makes every combination, the last axis fastest.
func (s *Scenario) matrix(vars variables) ([]variables, error) {
	filled, err := fill(&s.file.Matrix, vars)
	if err != nil {
		return nil, err
	}
	if filled.Kind != yaml.MappingNode {
		return nil, wrong(filled.Line, "a matrix wants axes with lists, as in {threads: [1, 8]}")
	}
	places := []variables{{}}
	for i := 0; i < len(filled.Content); i += 2 {
		axis, values := filled.Content[i], filled.Content[i+1]
		if values.Kind != yaml.SequenceNode || len(values.Content) == 0 {
			return nil, wrong(axis.Line, "axis %s wants a list of values", axis.Value)
		}
		if len(places)*len(values.Content) > maxTurns {
			return nil, wrong(axis.Line, "the matrix has more than %d places", maxTurns)
		}
		var next []variables
		for _, place := range places {
			for _, value := range values.Content {
				next = append(next, place.with(variables{axis.Value: value}))
			}
		}
		places = next
	}
	return places, nil
}

// setups works out every arm's every step.
func (s *Scenario) setups(p *Plan, vars variables) error {
	for _, arm := range p.Arms {
		var row []*Setup
		for _, step := range p.Steps {
			setup, err := s.setup(vars.with(step.vars).with(arm.Set))
			if err == nil && arm.Native {
				err = setup.checkNative()
			}
			if err != nil {
				return fault.Wrap(err, fault.Invalid, fault.Config, "arm %s, step %s", arm.Name, step.Name)
			}
			row = append(row, setup)
		}
		p.Setups = append(p.Setups, row)
	}
	return nil
}

func (s *Scenario) setup(vars variables) (*Setup, error) {
	var u Setup
	for _, one := range []struct {
		node *yaml.Node
		into any
	}{{&s.file.Guests, &u.Guests}, {&s.file.Load, &u.Loads}, {&s.file.Events, &u.Events}, {&s.file.Host, &u.Host}} {
		if err := read(one.node, vars, one.into); err != nil {
			return nil, err
		}
	}
	return &u, u.check()
}

// check sees that what is named is there.
func (u *Setup) check() error {
	if len(u.Guests) == 0 {
		return fault.New(fault.Invalid, fault.Config, "there are no guests")
	}
	roles := map[string]bool{}
	for _, g := range u.Guests {
		if roles[g.Role] {
			return wrong(g.line, "two roles have the name %s", g.Role)
		}
		roles[g.Role] = true
	}
	names := map[string]bool{}
	for _, l := range u.Loads {
		if names[l.Name] {
			return wrong(l.line, "two loads have the name %s", l.Name)
		}
		names[l.Name] = true
		if !roles[l.To] || l.From != hostRole && !roles[l.From] {
			return wrong(l.line, "load %s is from %s to %s: roles are %s", l.Name, l.From, l.To, list(roles))
		}
		for _, e := range slices.Concat(l.Prepare, l.Check) {
			if !roles[e.On] {
				return wrong(e.line, "there is no role %s: roles are %s", e.On, list(roles))
			}
		}
		if _, err := l.JSON(); err != nil {
			return wrong(l.line, "load %s: %v", l.Name, err)
		}
	}
	for _, e := range u.Events {
		if !roles[e.Guest] {
			return wrong(e.line, "there is no role %s: %s are there", e.Guest, list(roles))
		}
		if err := e.check(u); err != nil {
			return err
		}
	}
	return nil
}

// Outside tells whether an arm is outside of a guest.
func (p *Plan) Outside() bool {
	return slices.ContainsFunc(p.Arms, func(a Arm) bool { return a.Native })
}

// Repeat changes the number of repetitions.
func (p *Plan) Repeat(times int) error {
	p.Repetitions = times
	return p.check()
}

// Migrates says whether guests are moved in any step.
func (p *Plan) Migrates() bool {
	for _, row := range p.Setups {
		for _, u := range row {
			if slices.ContainsFunc(u.Events, func(e Event) bool { return e.Do == DoMigrate }) {
				return true
			}
		}
	}
	return false
}

// Narrow keeps the steps whose axes have one of the values that are named.
func (p *Plan) Narrow(only map[string][]string) error {
	axes := map[string]bool{}
	for _, step := range p.Steps {
		for axis := range step.Axes {
			axes[axis] = true
		}
	}
	for axis := range only {
		if !axes[axis] {
			return fault.New(fault.Invalid, fault.Config, "there is no axis %q: %s are there", axis, list(axes))
		}
	}
	narrow := Plan{Setups: make([][]*Setup, len(p.Arms))}
	for i, step := range p.Steps {
		if !step.within(only) {
			continue
		}
		narrow.Steps = append(narrow.Steps, step)
		for arm := range p.Arms {
			narrow.Setups[arm] = append(narrow.Setups[arm], p.Setups[arm][i])
		}
	}
	if len(narrow.Steps) == 0 {
		return fault.New(fault.Invalid, fault.Config, "no step has all of those values")
	}
	p.Steps, p.Setups = narrow.Steps, narrow.Setups
	return nil
}

func (s Step) within(only map[string][]string) bool {
	for axis, values := range only {
		if !slices.Contains(values, s.Axes[axis]) {
			return false
		}
	}
	return true
}
