package scenario

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// variables are names with values, which may be lists and mappings.
type variables map[string]*yaml.Node

var (
	whole  = regexp.MustCompile(`^\$([a-z][a-z0-9_]*)$`)
	within = regexp.MustCompile(`\$\{([a-z][a-z0-9_.-]*)\}`)
)

// fill gives a copy of a node with every variable replaced. A variable's value
// is not searched for variables again, so nothing grows without end. A replaced
// node keeps the line of its use.
func fill(node *yaml.Node, vars variables) (*yaml.Node, error) {
	if node.Kind == yaml.AliasNode || node.Anchor != "" {
		return nil, wrong(node.Line, "anchors and aliases are not read: use a variable of the profile")
	}
	filled := *node
	if node.Kind == yaml.ScalarNode {
		return fillScalar(&filled, vars)
	}
	filled.Content = make([]*yaml.Node, len(node.Content))
	for i, child := range node.Content {
		var err error
		if filled.Content[i], err = fill(child, vars); err != nil {
			return nil, err
		}
	}
	return &filled, nil
}

func fillScalar(node *yaml.Node, vars variables) (*yaml.Node, error) {
	if match := whole.FindStringSubmatch(node.Value); match != nil {
		value, ok := vars[match[1]]
		if !ok {
			return nil, unknown(node, match[1], vars)
		}
		return at(value, node.Line), nil
	}
	var failure error
	text := within.ReplaceAllStringFunc(node.Value, func(use string) string {
		name := use[2 : len(use)-1]
		if strings.Contains(name, ".") {
			return use // for later
		}
		value, ok := vars[name]
		switch {
		case !ok:
			failure = unknown(node, name, vars)
		case value.Kind != yaml.ScalarNode:
			failure = wrong(node.Line, "$%s is a list or a mapping, and cannot stand within a text", name)
		default:
			return value.Value
		}
		return use
	})
	if text != node.Value {
		node.Value, node.Tag = text, "" // a number may have come out
		if node.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
			node.Tag = "!!str"
		}
	}
	return node, failure
}

func unknown(node *yaml.Node, name string, vars variables) error {
	known := map[string]bool{}
	for name := range vars {
		known[name] = true
	}
	return wrong(node.Line, "there is no variable $%s here: %s are", name, list(known))
}

// at copies a node to a line.
func at(node *yaml.Node, line int) *yaml.Node {
	moved := *node
	moved.Line = line
	moved.Content = make([]*yaml.Node, len(node.Content))
	for i, child := range node.Content {
		moved.Content[i] = at(child, line)
	}
	return &moved
}

// with gives the variables with others on top.
func (v variables) with(more variables) variables {
	all := maps.Clone(v)
	if all == nil {
		all = variables{}
	}
	maps.Copy(all, more)
	return all
}

// UnmarshalYAML keeps the values as they are written.
func (v *variables) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return wrong(node.Line, "here belong variables with values, as in {tiles: 4}")
	}
	*v = variables{}
	for i := 0; i < len(node.Content); i += 2 {
		key := node.Content[i]
		if !regexp.MustCompile(`^[a-z][a-z0-9_]*$`).MatchString(key.Value) {
			return wrong(key.Line, "%q is no name for a variable: small letters, digits and _ are", key.Value)
		}
		if _, twice := (*v)[key.Value]; twice {
			return wrong(key.Line, "%q is said twice", key.Value)
		}
		(*v)[key.Value] = node.Content[i+1]
	}
	return nil
}

// text gives the values of scalars, for the record.
func (v variables) text() map[string]string {
	all := map[string]string{}
	for name, node := range v {
		if node.Kind == yaml.ScalarNode {
			all[name] = node.Value
		} else {
			text, _ := yaml.Marshal(node)
			all[name] = strings.TrimSpace(string(text))
		}
	}
	return all
}

func list(names map[string]bool) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}
