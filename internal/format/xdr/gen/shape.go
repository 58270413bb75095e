package main

import (
	"fmt"
	"slices"
	"strings"
)

// shapes maps each payload to its Go type. Payloads of one layout share a
// type, the others being aliases of it, which keeps the generated code small.
type shapes struct {
	payloads []*message // in table order
	owners   []*message // the types that payloads have, without those of structs
	owner    map[*message]*message
	users    map[*message]int // number of payloads of an owner
}

// longest layout that is named after its fields instead of its first user.
const maxNamed = 4

func (t *table) share() *shapes {
	s := &shapes{owner: map[*message]*message{}, users: map[*message]int{}}
	groups := map[string][]*message{}
	for _, p := range t.procs {
		for _, m := range []*message{p.args, p.ret} {
			if m != nil {
				s.payloads = append(s.payloads, m)
				groups[t.key(m.fields)] = append(groups[t.key(m.fields)], m)
			}
		}
	}
	taken := map[string]bool{}
	for _, m := range s.payloads {
		if s.owner[m] != nil {
			continue
		}
		group := groups[t.key(m.fields)]
		owner := t.sameFields(m)
		if owner == nil {
			owner = m
			if name := named(m); len(group) > 1 && len(m.fields) <= maxNamed && !taken[name] {
				taken[name] = true
				owner = &message{name: name, fields: m.fields}
			}
			s.owners = append(s.owners, owner)
		}
		for _, g := range group {
			s.owner[g] = owner
		}
		s.users[owner] = len(group)
	}
	return s
}

// sameFields finds the struct whose fields a payload shares by "= NAME".
func (t *table) sameFields(m *message) *message {
	i := slices.IndexFunc(t.structs, func(s *message) bool { return &s.fields[0] == &m.fields[0] })
	if i < 0 {
		return nil
	}
	return t.structs[i]
}

// key is equal for layouts that are read and written alike: limits count by
// their number.
func (t *table) key(fields []field) string {
	var b strings.Builder
	for _, f := range fields {
		y := f.typ
		if y.limit != "" {
			y.limit = t.limit(y.limit)
		}
		fmt.Fprint(&b, f.name, y)
	}
	return b.String()
}

func named(m *message) string {
	var b strings.Builder
	b.WriteString("With")
	for _, f := range m.fields {
		b.WriteString(f.name)
	}
	return b.String()
}

func (s *shapes) isPayload(m *message) bool { return s.users[m] > 0 }

// label is the name of a field in errors.
func (s *shapes) label(m *message, f field) string {
	if s.isPayload(m) {
		return f.name
	}
	return m.name + "." + f.name
}

func (s *shapes) doc(m *message) string {
	switch n := s.users[m]; n {
	case 0:
		return "is a part of messages"
	case 1:
		return "is a payload"
	default:
		return fmt.Sprintf("is the layout of %d payloads", n)
	}
}
