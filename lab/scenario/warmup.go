package scenario

import (
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Warmup is how long loads work before the first window that counts: Least, where
// nothing else is said; or from then on until they are steady, and Most at most.
type Warmup struct {
	Least time.Duration
	Most  time.Duration
	// Steady is the part by which three windows in a row may differ; 0 where the
	// length is fixed.
	Steady float64
	Window time.Duration // of those three, each
}

// Fixed says whether the warm-up has its length beforehand.
func (w Warmup) Fixed() bool { return w.Steady == 0 }

// SteadyWindows is how many windows in a row must be alike.
const SteadyWindows = 3

// The bounds of a warm-up. Loads tell once a second what they do.
const (
	minWarmWindow = 2 * time.Second
	maxSteady     = 0.5
)

// UnmarshalYAML reads a length, or when to end: 20s, or {least: 20s, most: 5m, steady: 5%}.
func (w *Warmup) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		err := node.Decode(&w.Least)
		w.Most = w.Least
		return err
	}
	var fields struct {
		Least  time.Duration `yaml:"least"`
		Most   time.Duration `yaml:"most"`
		Steady string        `yaml:"steady"`
		Window time.Duration `yaml:"window"` // a third of least, if nothing is said
	}
	if err := strict(node, &fields); err != nil {
		return err
	}
	if fields.Window == 0 {
		fields.Window = fields.Least / SteadyWindows
	}
	part, err := strconv.ParseFloat(strings.TrimSuffix(fields.Steady, "%"), 64)
	part /= 100
	switch {
	case err != nil || !strings.HasSuffix(fields.Steady, "%") || !(part > 0) || part > maxSteady:
		return wrong(node.Line, "steady is %q: say by how much windows may differ, as in 5%%; more than nothing and at most %.0f%% are possible", fields.Steady, 100*maxSteady)
	case fields.Most < fields.Least:
		return wrong(node.Line, "a warm-up of at least %s cannot end after %s at most", fields.Least, fields.Most)
	case fields.Window < minWarmWindow:
		return wrong(node.Line, "windows of %s are too short to be alike: %s each is the least, and %d of them are in least if nothing is said", fields.Window, minWarmWindow, SteadyWindows)
	case SteadyWindows*fields.Window > fields.Least:
		return wrong(node.Line, "least is %s, and %d windows of %s are longer", fields.Least, SteadyWindows, fields.Window)
	}
	*w = Warmup{Least: fields.Least, Most: fields.Most, Steady: part, Window: fields.Window}
	return nil
}
