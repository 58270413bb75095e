package scenario

import (
	"time"

	"go.yaml.in/yaml/v3"
)

// Storm is what a storm of the lab is made of; what each word means is told in
// package storm.
type Storm struct {
	Scenarios []string      `yaml:"scenarios"`
	Guests    []int         `yaml:"guests"`
	Disks     []int         `yaml:"disks"`
	Clients   int           `yaml:"clients"`
	Repeats   int           `yaml:"repeats"`
	Patience  time.Duration `yaml:"patience"`
	Window    time.Duration `yaml:"window"`
}

// UnmarshalYAML reads a storm.
func (s *Storm) UnmarshalYAML(node *yaml.Node) error {
	type fields Storm
	if err := strict(node, (*fields)(s)); err != nil {
		return err
	}
	if len(s.Scenarios) == 0 || len(s.Guests) == 0 || len(s.Disks) == 0 || s.Clients < 1 || s.Repeats < 1 || s.Patience <= 0 || s.Window <= 0 {
		return wrong(node.Line, "a storm wants scenarios, guests, disks, clients, repeats, patience and window")
	}
	return nil
}

func (s *Scenario) stormPlan(vars variables) (*Plan, error) {
	for _, node := range []yaml.Node{s.file.Guests, s.file.Load, s.file.Steps, s.file.Matrix, s.file.Arms, s.file.Events, s.file.Host} {
		if !node.IsZero() {
			return nil, wrong(node.Line, "a storm makes its own guests and steps")
		}
	}
	p := &Plan{Storm: &Storm{}}
	return p, read(&s.file.Storm, vars, p.Storm)
}
