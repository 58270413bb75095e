package scenario

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// wrong makes the error of a line.
func wrong(line int, format string, args ...any) error {
	return fault.New(fault.Invalid, fault.Config, "line %d: %s", line, fmt.Sprintf(format, args...))
}

// strict reads a mapping into a structure that has a field for each of its keys.
func strict(node *yaml.Node, into any) error {
	if node.Kind != yaml.MappingNode {
		return wrong(node.Line, "here belong names with values, as in {name: value}")
	}
	known := keys(reflect.TypeOf(into).Elem())
	seen := map[string]bool{}
	for i := 0; i < len(node.Content); i += 2 {
		key := node.Content[i]
		if !known[key.Value] {
			return wrong(key.Line, "%q is not known here: %s are", key.Value, list(known))
		}
		if seen[key.Value] {
			return wrong(key.Line, "%q is said twice", key.Value)
		}
		seen[key.Value] = true
	}
	return plain(node.Decode(into))
}

// plain turns the parser's words into ours, and leaves ours as they are.
func plain(err error) error {
	if typed, ok := errors.AsType[*yaml.TypeError](err); ok {
		return fault.New(fault.Invalid, fault.Config, "%s", strings.Join(typed.Errors, "; "))
	}
	return err
}

func keys(t reflect.Type) map[string]bool {
	all := map[string]bool{}
	for field := range t.Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("yaml"), ","); name != "" && name != "-" {
			all[name] = true
		}
	}
	return all
}
