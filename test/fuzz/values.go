package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
)

// written is how Go's fuzzer may write a type otherwise.
var written = strings.NewReplacer("math.Float64frombits", "float64", "math.Float32frombits", "float32", "byte\n", "uint8\n", "rune\n", "int32\n")

// takes are the kinds of the values that the target is given, as input.kinds tells them:
// those of the function that it hands to Fuzz.
func (t target) takes() (string, error) {
	files, err := filepath.Glob(filepath.Join(t.Package, "*_test.go"))
	if err != nil {
		return "", err
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return "", err
		}
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is && f.Recv == nil && f.Name.Name == t.Name {
				return takenIn(f), nil
			}
		}
	}
	return "", fmt.Errorf("%s is in no file", t)
}

func takenIn(declared *ast.FuncDecl) string {
	var kinds strings.Builder
	ast.Inspect(declared, func(n ast.Node) bool {
		call, is := n.(*ast.CallExpr)
		if !is || len(call.Args) != 1 {
			return true
		}
		method, is := call.Fun.(*ast.SelectorExpr)
		tried, given := call.Args[0].(*ast.FuncLit)
		if !is || !given || method.Sel.Name != "Fuzz" {
			return true
		}
		for _, field := range tried.Type.Params.List[1:] { // the first is the test
			for range max(len(field.Names), 1) {
				kinds.WriteString(types.ExprString(field.Type) + "\n")
			}
		}
		return false
	})
	return written.Replace(kinds.String())
}

// dropStrange removes the inputs in a folder that are of other values than the target
// takes, which fail it.
func (t target) dropStrange(folder string) (dropped int, err error) {
	takes, err := t.takes()
	if err != nil {
		return 0, err
	}
	entries, err := filepath.Glob(filepath.Join(folder, "*"))
	for _, path := range entries {
		content, e := os.ReadFile(path)
		if e != nil {
			return dropped, e
		}
		if written.Replace(input{content: content}.kinds()) == takes {
			continue
		}
		if err := os.Remove(path); err != nil {
			return dropped, err
		}
		dropped++
	}
	return dropped, err
}
