package operation

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Work is the payload of an operation and what can be done with it. Its exported
// fields are the payload, as JSON.
type Work interface {
	// Steps are the operation's. They follow from the payload alone.
	Steps() []Step
}

// Opener is a Work that is told of its operation, before its steps are asked for. An
// error says that the payload makes no sense.
type Opener interface{ Opened(*Operation) error }

// Ender is a Work that is told when the record of its operation has gone. It may be
// told in the owner's loop, and waits for nothing.
type Ender interface{ Ended() }

// Rehold is a Work that holds something of the host while it is open. The next
// daemon calls it before the owner's loop runs; it asks nobody who may be slow.
type Rehold interface{ Rehold() }

// Kind is how operations of one kind are done for owners of type O.
type Kind[O any] struct {
	Name string
	// Version is that of the payload and its steps. A record of another one is refused.
	Version int
	Class   Class
	// Steps names all steps that an operation of this kind may have, and Undo those that
	// can be taken back. The crash matrix reads their fail points here.
	Steps, Undo []string
	// Bind gives the work of an owner with nothing in its payload yet.
	Bind func(O) Work
}

// Check says in what the steps of a work differ from those that its kind names.
func (k Kind[O]) Check(w Work) error {
	for _, s := range w.Steps() {
		if !slices.Contains(k.Steps, s.Name) {
			return fmt.Errorf("kind %s names no step %q", k.Name, s.Name)
		}
		if (s.Undo != nil) != slices.Contains(k.Undo, s.Name) {
			return fmt.Errorf("kind %s: step %q is named among those that can be taken back, and cannot be, or the reverse", k.Name, s.Name)
		}
	}
	return nil
}

// open makes the work of a record.
func (k Kind[O]) open(owner O, r Record) (Work, error) {
	if r.Version != k.Version {
		return nil, fmt.Errorf("operation %s (%s) has version %d, and this daemon knows version %d", r.ID, r.Kind, r.Version, k.Version)
	}
	w := k.Bind(owner)
	if err := json.Unmarshal(r.Payload, w); err != nil {
		return nil, fmt.Errorf("the payload of operation %s (%s) is damaged: %w", r.ID, r.Kind, err)
	}
	return w, nil
}

// Kinds are those that an owner may have.
type Kinds[O any] []Kind[O]

func (all Kinds[O]) find(name string) (Kind[O], bool) {
	i := slices.IndexFunc(all, func(k Kind[O]) bool { return k.Name == name })
	if i < 0 {
		return Kind[O]{}, false
	}
	return all[i], true
}
