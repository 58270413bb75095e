// Package schema reads QEMU's own description of its monitor protocol, the
// answer to query-qmp-schema: which commands, events and values one QEMU
// knows, and whether a message has the shape it would accept or send.
//
// The types in it are numbered and change numbers between versions, so
// questions are put as paths of names that begin at a command or an event.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Schema is one QEMU's description of its protocol.
type Schema struct {
	entities map[string]*entity
}

// entity is a command, an event or a type; which fields count depends on meta.
type entity struct {
	Name    string `json:"name"`
	Meta    string `json:"meta-type"`
	Arg     string `json:"arg-type"`     // command, event
	Ret     string `json:"ret-type"`     // command
	Element string `json:"element-type"` // array
	JSON    string `json:"json-type"`    // builtin

	Members  []member  `json:"members"` // object, alternate
	Tag      string    `json:"tag"`     // object: the member that chooses the variant
	Variants []variant `json:"variants"`
	Values   []string  `json:"values"` // enum
}

type member struct {
	Name    string          `json:"name"`
	Type    string          `json:"type"`
	Default json.RawMessage `json:"default"` // present (as null) when optional
}

type variant struct {
	Case string `json:"case"`
	Type string `json:"type"`
}

// Parse reads the answer to query-qmp-schema.
func Parse(answer []byte) (*Schema, error) {
	var list []*entity
	if err := json.Unmarshal(answer, &list); err != nil {
		return nil, fmt.Errorf("cannot understand the schema: %w", err)
	}
	s := &Schema{entities: make(map[string]*entity, len(list))}
	for _, e := range list {
		if e == nil {
			return nil, errors.New("cannot understand the schema: an entry is null")
		}
		s.entities[e.Name] = e
	}
	return s, nil
}

// Commands lists the commands by name, sorted.
func (s *Schema) Commands() []string { return s.names("command") }

// Events lists the events by name, sorted.
func (s *Schema) Events() []string { return s.names("event") }

func (s *Schema) names(meta string) []string {
	var names []string
	for name, e := range s.entities {
		if e.Meta == meta {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// maxDepth bounds a walk; real paths have a handful of steps.
const maxDepth = 32

// Has reports whether this QEMU knows what a path names: a command or event,
// then members, variants of a union, or values of an enumeration, each after a
// slash. Arrays and alternates are seen through.
//
//	Has("blockdev-add/file/aio/io_uring")
func (s *Schema) Has(path string) bool {
	e, steps := s.start(path)
	if e == nil || len(steps) == 0 {
		return e != nil
	}
	before, last := steps[:len(steps)-1], steps[len(steps)-1]
	return len(s.reach(e.Arg, steps)) > 0 || slices.Contains(s.values(e.Arg, before), last)
}

// Values lists what an enumeration may be. The path leads through the
// arguments of a command or the data of an event.
func (s *Schema) Values(path string) []string {
	if e, steps := s.start(path); e != nil {
		return s.values(e.Arg, steps)
	}
	return nil
}

// AnswerValues is Values for a path through the answer to a command.
func (s *Schema) AnswerValues(path string) []string {
	if e, steps := s.start(path); e != nil {
		return s.values(e.Ret, steps)
	}
	return nil
}

func (s *Schema) start(path string) (*entity, []string) {
	steps := strings.Split(path, "/")
	e := s.entities[steps[0]]
	if e == nil || e.Meta != "command" && e.Meta != "event" {
		return nil, nil
	}
	return e, steps[1:]
}

func (s *Schema) values(typ string, steps []string) []string {
	var all []string
	for _, e := range s.reach(typ, steps) {
		all = append(all, e.Values...)
	}
	return all
}

// reach returns the types at the end of a path.
func (s *Schema) reach(typ string, steps []string) []*entity {
	w := walk{schema: s, seen: map[place]bool{}}
	w.on(typ, steps, 0)
	return w.found
}

// walk follows a path, visiting each place once: the schema comes from QEMU
// and may have cycles.
type walk struct {
	schema *Schema
	seen   map[place]bool
	found  []*entity
}

// place is a type with so many steps of the path left.
type place struct {
	typ  string
	left int
}

func (w *walk) on(typ string, steps []string, depth int) {
	e, here := w.schema.entities[typ], place{typ, len(steps)}
	if e == nil || depth > maxDepth || w.seen[here] {
		return
	}
	w.seen[here] = true
	switch {
	case e.Meta == "array":
		w.on(e.Element, steps, depth+1)
	case e.Meta == "alternate":
		for _, m := range e.Members {
			w.on(m.Type, steps, depth+1)
		}
	case len(steps) == 0:
		w.found = append(w.found, e)
	case e.Meta == "object":
		for _, m := range e.Members {
			if m.Name == steps[0] {
				w.on(m.Type, steps[1:], depth+1)
			}
		}
		for _, v := range e.Variants {
			if v.Case == steps[0] {
				w.on(v.Type, steps[1:], depth+1)
			}
		}
	}
}
