package law

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// contextValues are the places where a room puts a value into a context. None of the values says what a client
// may do: that is a scope.Scope, and a parameter. Each says what it is.
var contextValues = map[string]string{
	"internal/base/fairqueue/fairqueue.go": "the queue that a call takes turns in",
	"internal/edge/api/limits.go":          "who calls: net/http hands nothing else to a handler",
	"internal/edge/api/server.go":          "the connection that a call came by, for the same reason",
}

// A context that was lost on its way carries no permission away: who may do what is a parameter, and its zero
// value refuses everything.
func TestNoContextCarriesAPermission(t *testing.T) {
	found := map[string][]string{}
	eachFile(t, func(name string, files *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			to, is := n.(*ast.SelectorExpr)
			if is && to.Sel.Name == "WithValue" {
				found[name] = append(found[name], files.Position(to.Pos()).String())
			}
			return true
		})
	})
	for name, where := range found {
		if contextValues[name] == "" {
			t.Errorf("%s puts a value into a context (%s): make it a parameter, or list in contextValues what it is", name, strings.Join(where, ", "))
		}
	}
	for name := range contextValues {
		if found[name] == nil {
			t.Errorf("%s puts no value into a context any more: strike it out of contextValues", name)
		}
	}
}
