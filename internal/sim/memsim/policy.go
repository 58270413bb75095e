package memsim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/decision/arbiter"
)

// Policy decides on balloons. One value serves one run.
type Policy interface {
	// Begin is called once, before second 0.
	Begin(w *World)
	// Step is called each second, after guests started and ended and before balloons move. It may set targets.
	Step(second int)
}

// Configurable is a policy with parameters.
type Configurable interface {
	Policy
	// Parameters gives a pointer to a struct that holds the defaults; its JSON keys are the parameters' names.
	Parameters() any
}

// policies are the known policies by name.
var policies = map[string]func() Policy{
	"static":     func() Policy { return &static{} },
	"static+fpr": func() Policy { return &static{reporting: true} },
	"mom":        func() Policy { return &mom{} },
	"pvestatd":   func() Policy { return &pvestatd{} },
	"qmemman":    func() Policy { return &qmemman{} },
	"esx":        func() Policy { return &esx{} },
	"oracle":     func() Policy { return &oracle{} },
	"now":        func() Policy { return &now{} },
	"ours-spec":  func() Policy { return &ours{oursParameters: specOurs()} },
	"ours":       func() Policy { return &ours{oursParameters: tunedOurs()} },
	"next":       func() Policy { return &next{nextParameters: tunedNext()} },
	"lodge":      func() Policy { return &lodge{rules: arbiter.Tuned} },
}

// Policies gives the names of the known policies, in order.
func Policies() []string { return slices.Sorted(maps.Keys(policies)) }

// Setup is a policy with its parameters, and what the runs change on all guests.
type Setup struct {
	// Text is POLICY[:KEY=JSON;...][@KEY=NUMBER,...], as given to ParseSetup.
	Text       string
	parameters []byte // a JSON object
	create     func() Policy
	amendments []amendment
}

type amendment struct {
	set   func(*Guest, float64)
	value float64
}

// ParseSetup reads a policy's name, its parameters and the changes of guests.
func ParseSetup(text string) (*Setup, error) {
	policy, changes, _ := strings.Cut(text, "@")
	name, parameters, _ := strings.Cut(policy, ":")
	s := &Setup{Text: text, create: policies[name]}
	if s.create == nil {
		return nil, invalid("policy %q is not known; there are: %s", name, strings.Join(Policies(), ", "))
	}
	values := map[string]json.RawMessage{}
	for pair := range strings.SplitSeq(parameters, ";") {
		if pair == "" {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		values[key] = json.RawMessage(value)
	}
	if len(values) > 0 {
		var err error
		if s.parameters, err = json.Marshal(values); err != nil {
			return nil, invalid("parameters %q are not KEY=JSON, separated by semicolons: %v", parameters, err)
		}
	}
	for pair := range strings.SplitSeq(changes, ",") {
		if pair == "" {
			continue
		}
		a, err := parseAmendment(pair)
		if err != nil {
			return nil, err
		}
		s.amendments = append(s.amendments, a)
	}
	_, err := s.policy()
	return s, err
}

// policy makes the policy for one run.
func (s *Setup) policy() (Policy, error) {
	p := s.create()
	if s.parameters == nil {
		return p, nil
	}
	configurable, is := p.(Configurable)
	if !is {
		return nil, invalid("policy %q has no parameters", s.Text)
	}
	decoder := json.NewDecoder(bytes.NewReader(s.parameters))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(configurable.Parameters()); err != nil {
		return nil, fmt.Errorf("cannot take the parameters of policy %q: %w", s.Text, err)
	}
	return p, nil
}

// amend changes a guest's line.
func (s *Setup) amend(g *Guest) {
	for _, a := range s.amendments {
		a.set(g, a.value)
	}
}

// amendable are the numbers of guests that a setup can change, by the names of the reference.
var amendable = map[string]func(*Guest, float64){
	"per":    func(g *Guest, v float64) { g.StatPeriod = int(v) },
	"dly":    func(g *Guest, v float64) { g.StatDelay = int(v) },
	"inf":    func(g *Guest, v float64) { g.Inflate = v },
	"defl":   func(g *Guest, v float64) { g.Deflate = v },
	"auto":   func(g *Guest, v float64) { g.AutoDeflate = v > 0 },
	"fpr":    func(g *Guest, v float64) { g.Reporting = v > 0 },
	"stalls": func(g *Guest, v float64) { g.Stalls = v > 0 },
	"honest": func(g *Guest, v float64) { g.Honest = v > 0 },
	"F":      func(g *Guest, v float64) { g.Floor = v },
	"shares": func(g *Guest, v float64) { g.Shares = v },
	"gsm":    func(g *Guest, v float64) { g.Swap = v },
	"gsr":    func(g *Guest, v float64) { g.SwapRate = v },
	"fill":   func(g *Guest, v float64) { g.Fill = v },
}

func parseAmendment(pair string) (amendment, error) {
	key, text, _ := strings.Cut(pair, "=")
	value, err := strconv.ParseFloat(text, 64)
	set := amendable[key]
	if err != nil || set == nil {
		return amendment{}, invalid("%q is not KEY=NUMBER with a key of: %s", pair, strings.Join(slices.Sorted(maps.Keys(amendable)), ", "))
	}
	g := Guest{Max: maxMiB, StatPeriod: 1, Coop: cooperates, Alpha: 1, Beta: 1, Gamma: 1, Delta: 1}
	set(&g, value)
	if err := g.check(); err != nil {
		return amendment{}, err
	}
	return amendment{set: set, value: value}, nil
}
