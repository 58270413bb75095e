package operation

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Work is the payload of an operation and its steps. The exported
// fields are the payload, as JSON.
type Work interface {
	// Steps lists the operation's steps. They follow from the payload alone.
	Steps() []Step
}

// Opener is a Work that receives its operation before its steps are asked for. An
// error says that the payload is not valid.
type Opener interface{ Opened(*Operation) error }

// Ender is a Work that is told when the record of its operation has gone. The call may
// come in the owner's loop and must not block.
type Ender interface{ Ended() }

// Reholder is a Work that holds resources of the host while it is open. The next
// daemon calls it before the owner's loop runs; it must not ask anything that may be slow.
type Reholder interface{ Rehold() }

// Kind describes the operations of one kind, for owners of type O.
type Kind[O any] struct {
	Name string
	// Version of the payload and its steps. A record of another version is refused.
	Version int
	Class   Class
	// Steps names all steps that an operation of this kind may have, and Undo those that
	// can be undone. The crash matrix reads their fail points here.
	Steps, Undo []string
	// Bind returns the work for an owner, with an empty payload.
	Bind func(O) Work
}

// Check reports how the steps of a work differ from those that its kind names.
func (k Kind[O]) Check(w Work) error {
	for _, s := range w.Steps() {
		if !slices.Contains(k.Steps, s.Name) {
			return fmt.Errorf("kind %s names no step %q", k.Name, s.Name)
		}
		if (s.Undo != nil) != slices.Contains(k.Undo, s.Name) {
			return fmt.Errorf("kind %s: step %q is listed in Undo but has none, or has one and is not listed", k.Name, s.Name)
		}
	}
	return nil
}

// decodeWork makes the work from a record.
func (k Kind[O]) decodeWork(owner O, r Record) (Work, error) {
	if r.Version != k.Version {
		return nil, fmt.Errorf("operation %s (%s) has version %d, and this daemon knows version %d", r.ID, r.Kind, r.Version, k.Version)
	}
	w := k.Bind(owner)
	if err := json.Unmarshal(r.Payload, w); err != nil {
		return nil, fmt.Errorf("the payload of operation %s (%s) is damaged: %w", r.ID, r.Kind, err)
	}
	return w, nil
}

// Kinds lists the kinds that an owner may have.
type Kinds[O any] []Kind[O]

func (all Kinds[O]) find(name string) (Kind[O], bool) {
	i := slices.IndexFunc(all, func(k Kind[O]) bool { return k.Name == name })
	if i < 0 {
		return Kind[O]{}, false
	}
	return all[i], true
}
