// Package failpointtest finds the fail points of the source, for tests that must
// reach them all.
package failpointtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var form = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+$`)

// Names returns the names of all points below the root of a checkout, in order: those
// in calls, and those of the steps that an operation.Kind names. A name that is
// not a literal, has another form or stands at two places is an error.
func Names(root string) ([]string, error) {
	at := map[string]token.Position{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if base := entry.Name(); path != root && (strings.HasPrefix(base, ".") || base == "testdata" || base == "failpoint" || base == "operation") {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		return scan(path, at)
	})
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(at))
	for name := range at {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// scan adds the points of one file.
func scan(path string, at map[string]token.Position) (err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	add := func(name string, position token.Position) {
		if other, twice := at[name]; twice {
			err = fmt.Errorf("%v: the fail point %s stands at %v already", position, name, other)
		}
		if !form.MatchString(name) {
			err = fmt.Errorf("%v: %q is no name of a fail point: they are area.step", position, name)
		}
		at[name] = position
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if kind, is := n.(*ast.CompositeLit); is && isKind(kind.Type) {
			for _, name := range stepsOf(kind) {
				add(name, files.Position(kind.Pos()))
			}
			return err == nil
		}
		call, ok := n.(*ast.CallExpr)
		if !ok || err != nil || !isPoint(call.Fun) {
			return err == nil
		}
		position := files.Position(call.Pos())
		literal, ok := call.Args[0].(*ast.BasicLit)
		if !ok {
			err = fmt.Errorf("%v: the name of a fail point is a literal", position)
			return false
		}
		name, _ := strconv.Unquote(literal.Value)
		add(name, position)
		return err == nil
	})
	return err
}

// isPoint reports whether a call's function is one that makes a fail point.
func isPoint(f ast.Expr) bool {
	s, ok := f.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	room, ok := s.X.(*ast.Ident)
	return ok && room.Name == "failpoint" && (s.Sel.Name == "Reach" || s.Sel.Name == "Err")
}

// isKind reports whether a literal is of type operation.Kind.
func isKind(t ast.Expr) bool {
	generic, ok := t.(*ast.IndexExpr)
	if !ok {
		return false
	}
	s, ok := generic.X.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	room, ok := s.X.(*ast.Ident)
	return ok && room.Name == "operation" && s.Sel.Name == "Kind"
}

// stepsOf returns the points of the steps of a kind: before and after each Do, and before and
// after each Undo of a step that has one.
func stepsOf(kind *ast.CompositeLit) (points []string) {
	var name string
	lists := map[string][]string{}
	for _, field := range kind.Elts {
		pair, ok := field.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, ok := pair.Key.(*ast.Ident)
		if !ok {
			continue
		}
		switch value := pair.Value.(type) {
		case *ast.BasicLit:
			if key.Name == "Name" {
				name, _ = strconv.Unquote(value.Value)
			}
		case *ast.CompositeLit:
			for _, e := range value.Elts {
				if literal, ok := e.(*ast.BasicLit); ok {
					step, _ := strconv.Unquote(literal.Value)
					lists[key.Name] = append(lists[key.Name], step)
				}
			}
		}
	}
	for _, step := range lists["Steps"] {
		points = append(points, name+"."+step, name+"."+step+".done")
	}
	for _, step := range lists["Undo"] {
		points = append(points, name+"."+step+".undo", name+"."+step+".undone")
	}
	return points
}
