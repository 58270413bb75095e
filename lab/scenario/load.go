package scenario

import (
	"encoding/json"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// hostRole is where the lab itself runs.
const hostRole = "host"

// Load is one that runs through the warm-up and all windows of a turn, once for
// each tile.
type Load struct {
	Name  string `yaml:"name"`
	Kind  string `yaml:"kind"`
	About string `yaml:"about"` // what it does, in a few words for the report
	From  string `yaml:"from"`  // the role that runs it, or host
	To    string `yaml:"to"`    // the role that serves it; From if nothing is said
	// Config is the kind's own, but for how long: that the lab fills in.
	Config map[string]any `yaml:"config"`
	// Prepare is done before it, once a turn: what it needs is filled.
	Prepare []Errand `yaml:"prepare"`
	// Check is done after it: what each operation there has come to by the server's
	// own books must be what the load says of the operation of that name.
	Check []Errand `yaml:"check"`
	// Counted names a counter in the server's own log that must agree with all
	// that the load has asked.
	Counted string `yaml:"counted"`

	line int
}

// UnmarshalYAML reads a load.
func (l *Load) UnmarshalYAML(node *yaml.Node) error {
	type fields Load
	l.line = node.Line
	if err := strict(node, (*fields)(l)); err != nil {
		return err
	}
	if l.To == "" {
		l.To = l.From
	}
	if l.Name == "" || l.Kind == "" || l.From == "" {
		return wrong(l.line, "a load wants name, kind and from")
	}
	if l.To == hostRole {
		return wrong(l.line, "load %s wants to: the role that serves it", l.Name)
	}
	for _, list := range [][]Errand{l.Prepare, l.Check} {
		for i := range list {
			if list[i].On == "" {
				list[i].On = l.To
			}
		}
	}
	return nil
}

// Errand is a piece of work in a guest that ends by itself.
type Errand struct {
	On     string         `yaml:"on"` // the role; To of the load if nothing is said
	Kind   string         `yaml:"kind"`
	Config map[string]any `yaml:"config"`

	line int
}

// UnmarshalYAML reads an errand.
func (e *Errand) UnmarshalYAML(node *yaml.Node) error {
	type fields Errand
	e.line = node.Line
	if err := strict(node, (*fields)(e)); err != nil {
		return err
	}
	if e.Kind == "" {
		return wrong(e.line, "an errand wants its kind")
	}
	return nil
}

// JSON is the configuration as a load reads it.
func (l *Load) JSON() (json.RawMessage, error) { return json.Marshal(l.Config) }

// Event is something done amid a turn.
type Event struct {
	At    time.Duration `yaml:"at"` // from the start of the first window
	Do    string        `yaml:"do"`
	Guest string        `yaml:"guest"` // the role; of every tile
	To    string        `yaml:"to"`    // processors or memory to reach; nothing for a migration

	line int
}

// What an Event can do.
const (
	DoVCPUs   = "vcpus"   // add or take processors
	DoMemory  = "memory"  // add memory, as a DIMM
	DoBalloon = "balloon" // have the guest give memory back, or take it
	DoMigrate = "migrate" // move the guest, as it runs, to the daemon that the run names for that
)

// UnmarshalYAML reads an event.
func (e *Event) UnmarshalYAML(node *yaml.Node) error {
	type fields Event
	e.line = node.Line
	if err := strict(node, (*fields)(e)); err != nil {
		return err
	}
	if err := oneOf(e.line, "do", e.Do, DoVCPUs, DoMemory, DoBalloon, DoMigrate); err != nil {
		return err
	}
	if e.Guest == "" || e.At < 0 {
		return wrong(e.line, "an event wants at and guest")
	}
	if e.Do == DoMigrate && e.To != "" {
		return wrong(e.line, "migrate wants no to: lodge lab run --to names the daemon")
	}
	if e.Do != DoMigrate && e.To == "" {
		return wrong(e.line, "%s wants to: what to reach", e.Do)
	}
	return nil
}

// MemoryBlock is what guests' kernels take memory in.
const MemoryBlock = 128 * MiB

// check holds an event against the guest that it is of, which is there.
func (e *Event) check(u *Setup) error {
	at := slices.IndexFunc(u.Guests, func(g Guest) bool { return g.Role == e.Guest })
	switch g := u.Guests[at]; e.Do {
	case DoMemory:
		size, err := ParseSize(e.To)
		if err != nil {
			return wrong(e.line, "%v", err)
		}
		if size <= g.Memory || size > g.MaxMemory || (size-g.Memory)%MemoryBlock != 0 {
			return wrong(e.line, "memory of %s is to grow to %s: from %s to %s (max_memory) in steps of %s is possible", e.Guest, size, g.Memory, g.MaxMemory, MemoryBlock)
		}
	case DoMigrate:
		for _, l := range u.Loads {
			if l.From == e.Guest {
				return wrong(e.line, "%s runs load %s, which ends with its line to the lab: migrate the guest that serves it", e.Guest, l.Name)
			}
		}
	}
	return nil
}
