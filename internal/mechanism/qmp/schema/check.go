package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// CheckArguments checks the arguments of a command. Nil means no arguments. It reports
// an unknown name, a missing one, a wrong type or value.
func (s *Schema) CheckArguments(command string, args []byte) error {
	e := s.entities[command]
	if e == nil || e.Meta != "command" {
		return fmt.Errorf("no command %s", command)
	}
	if len(args) == 0 {
		args = []byte("{}")
	}
	// device_add takes any property of the device beside those it declares.
	c := checker{schema: s, mandatory: true, open: command == "device_add"}
	return c.document(command, e.Arg, args)
}

// CheckReturn checks an answer to a command. Members may be
// missing, so that a test need not list members that it does not use.
func (s *Schema) CheckReturn(command string, answer []byte) error {
	e := s.entities[command]
	if e == nil || e.Meta != "command" {
		return fmt.Errorf("no command %s", command)
	}
	return (&checker{schema: s}).document(command, e.Ret, answer)
}

// CheckEvent checks the data of an event. Nil means no data.
func (s *Schema) CheckEvent(event string, data []byte) error {
	e := s.entities[event]
	if e == nil || e.Meta != "event" {
		return fmt.Errorf("no event %s", event)
	}
	if len(data) == 0 {
		data = []byte("{}")
	}
	return (&checker{schema: s, mandatory: true}).document(event, e.Arg, data)
}

type checker struct {
	schema    *Schema
	mandatory bool // members that are not optional must be there
	open      bool // the outermost object may have more members
}

func (c *checker) document(where, typ string, doc []byte) error {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return c.value(where, typ, v, 0)
}

func (c *checker) value(where, typ string, v any, depth int) error {
	e := c.schema.entities[typ]
	if e == nil || depth > maxDepth {
		return fmt.Errorf("%s: the schema has no type %q, or it does not end", where, typ)
	}
	switch e.Meta {
	case "builtin":
		return builtin(where, e.JSON, v)
	case "enum":
		if text, ok := v.(string); !ok || !slices.Contains(e.Values, text) {
			return fmt.Errorf("%s: %v is none of %q", where, v, e.Values)
		}
		return nil
	case "array":
		list, ok := v.([]any)
		if !ok {
			return fmt.Errorf("%s: %v is no array", where, v)
		}
		for i, element := range list {
			if err := c.value(fmt.Sprintf("%s[%d]", where, i), e.Element, element, depth+1); err != nil {
				return err
			}
		}
		return nil
	case "alternate":
		var err error
		for _, m := range e.Members {
			if err = c.value(where, m.Type, v, depth+1); err == nil {
				return nil
			}
		}
		return err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%s: %v is no object", where, v)
	}
	return c.object(where, e, object, depth)
}

func (c *checker) object(where string, e *entity, object map[string]any, depth int) error {
	members := e.Members
	if e.Tag != "" {
		for _, v := range e.Variants {
			if chosen := c.schema.entities[v.Type]; v.Case == object[e.Tag] && chosen != nil {
				members = slices.Concat(members, chosen.Members)
			}
		}
	}
	known := make(map[string]bool, len(members))
	for _, m := range members {
		known[m.Name] = true
		v, present := object[m.Name]
		switch {
		case present:
			if err := c.value(where+"."+m.Name, m.Type, v, depth+1); err != nil {
				return err
			}
		case c.mandatory && m.Default == nil:
			return fmt.Errorf("%s: %s is missing", where, m.Name)
		}
	}
	for name := range object {
		if !known[name] && (!c.open || depth > 0) {
			return fmt.Errorf("%s: there is no %s", where, name)
		}
	}
	return nil
}

func builtin(where, want string, v any) error {
	var ok bool
	switch want {
	case "value":
		ok = true
	case "string":
		_, ok = v.(string)
	case "boolean":
		_, ok = v.(bool)
	case "null":
		ok = v == nil
	case "number":
		_, ok = v.(json.Number)
	case "int":
		n, isNumber := v.(json.Number)
		ok = isNumber && !bytes.ContainsAny([]byte(n), ".eE")
	}
	if !ok {
		return fmt.Errorf("%s: %v is no %s", where, v, want)
	}
	return nil
}
