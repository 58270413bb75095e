package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Schema names the language.
const Schema = "lodge.lab/1"

// maxText bounds a file, and maxTurns what becomes of it.
const (
	maxText  = 1 << 20
	maxTurns = 100_000
)

// Scenario is a file that has been read.
type Scenario struct {
	Name  string
	Title string
	About string
	Paper string // whose measurement it repeats
	Text  string

	file file
}

// file is what stands in it.
type file struct {
	Schema      string               `yaml:"schema"`
	Name        string               `yaml:"name"`
	Title       string               `yaml:"title"`
	About       string               `yaml:"about"`
	Paper       string               `yaml:"paper"`
	Profiles    map[string]variables `yaml:"profiles"`
	Arms        yaml.Node            `yaml:"arms"`
	Steps       yaml.Node            `yaml:"steps"`
	Matrix      yaml.Node            `yaml:"matrix"`
	Repetitions yaml.Node            `yaml:"repetitions"`
	Windows     yaml.Node            `yaml:"windows"`
	Warmup      yaml.Node            `yaml:"warmup"`
	Measure     yaml.Node            `yaml:"measure"`
	Guests      yaml.Node            `yaml:"guests"`
	Load        yaml.Node            `yaml:"load"`
	Events      yaml.Node            `yaml:"events"`
	Host        yaml.Node            `yaml:"host"`
	Bounds      yaml.Node            `yaml:"bounds"`
	Storm       yaml.Node            `yaml:"storm"`
}

// Parse reads a scenario and works out all of its profiles, so that a mistake in any
// of them is told at once.
func Parse(text []byte) (*Scenario, error) {
	s, err := parse(text)
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, fault.Config, "cannot read the scenario")
	}
	return s, nil
}

// check works out every profile.
func (s *Scenario) check() error {
	for _, profile := range s.Profiles() {
		if _, err := s.Plan(profile); err != nil {
			return fmt.Errorf("profile %s: %w", profile, err)
		}
	}
	return nil
}

func parse(text []byte) (*Scenario, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("it has %d bytes: %d are read", len(text), maxText)
	}
	var root yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	switch err := decoder.Decode(&root); {
	case errors.Is(err, io.EOF) || err == nil && len(root.Content) == 0:
		return nil, errors.New("there is nothing in it")
	case err != nil:
		return nil, plain(err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document in it")
	}
	s := &Scenario{Text: string(text)}
	if err := strict(root.Content[0], &s.file); err != nil {
		return nil, err
	}
	f := s.file
	s.Name, s.Title, s.About, s.Paper = f.Name, f.Title, strings.TrimSpace(f.About), f.Paper
	switch {
	case f.Schema != Schema:
		return nil, wrong(root.Content[0].Line, "schema is %q, and %s is read", f.Schema, Schema)
	case f.Name == "":
		return nil, wrong(root.Content[0].Line, "the scenario wants a name")
	case len(f.Profiles) == 0:
		return nil, wrong(root.Content[0].Line, "the scenario wants at least one profile")
	}
	return s, nil
}

// Open reads a scenario from a file, or one that ships by its name.
func Open(name string) (*Scenario, error) {
	if !strings.ContainsAny(name, "/.") {
		return Shipped(name)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fault.Wrap(err, fault.NotFound, fault.Config, "cannot read the scenario")
	}
	s, err := Parse(text)
	return s, fault.Wrap(err, fault.Of(err), fault.Config, "%s", filepath.Base(name))
}

// Profiles names them, in order.
func (s *Scenario) Profiles() []string {
	var all []string
	for name := range s.file.Profiles {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// Plan is a scenario in one profile.
type Plan struct {
	Arms        []Arm
	Steps       []Step
	Repetitions int
	Windows     int
	Warmup      Warmup
	Measure     time.Duration
	Bounds      []Bound
	Setups      [][]*Setup // by arm and step
	Storm       *Storm     // of a storm, which has none of the above
}

// Arm is one of the things compared.
type Arm struct {
	Name string    `yaml:"name"`
	Set  variables `yaml:"set"` // holds at every step, also for what a step says
	// Native has the roles run outside of a guest, on the lab's own host: the same
	// files and services on as many processors and in as much memory.
	Native bool `yaml:"native"`

	line int
}

// Text is what the arm sets.
func (a Arm) Text() map[string]string { return a.Set.text() }

// Step is a place on the axes.
type Step struct {
	Name string
	Axes map[string]string

	vars variables
}

// Setup is one arm's one step, with all values filled in.
type Setup struct {
	Guests []Guest
	Loads  []Load
	Events []Event
	Host   map[string]string // tunings of the host, by name
}

// Bound is what a metric must keep.
type Bound struct {
	Metric string            `yaml:"metric"`
	Labels map[string]string `yaml:"labels"`
	Below  *float64          `yaml:"below"`
	Above  *float64          `yaml:"above"`
	Unit   string            `yaml:"unit"`
}

// UnmarshalYAML reads an arm.
func (a *Arm) UnmarshalYAML(node *yaml.Node) error {
	type fields Arm
	a.line = node.Line
	return strict(node, (*fields)(a))
}

// UnmarshalYAML reads a bound.
func (b *Bound) UnmarshalYAML(node *yaml.Node) error {
	type fields Bound
	if err := strict(node, (*fields)(b)); err != nil {
		return err
	}
	if b.Metric == "" || (b.Below == nil) == (b.Above == nil) {
		return wrong(node.Line, "a bound wants metric, and either below or above")
	}
	return nil
}
