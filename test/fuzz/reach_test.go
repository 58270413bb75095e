package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReach_CountsEnteredFunctions, and of no others.
func TestReach_CountsEnteredFunctions(t *testing.T) {
	t.Chdir(t.TempDir())
	const source = "package a\n\nfunc entered(b bool) int {\n\tif b {\n\t\treturn 1\n\t}\n\treturn 2\n}\n\nfunc other() {\n\tother()\n}\n"
	if err := os.WriteFile("a.go", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	entered, err := readProfile(strings.NewReader("mode: set\nm/a.go:3.27,4.7 1 1\nm/a.go:4.7,6.3 1 0\nm/a.go:7.2,7.10 3 7\nm/a.go:10.14,12.2 1 0\n"), "m")
	if err != nil {
		t.Fatal(err)
	}
	e := extent{entered: entered, strange: 2}
	var out strings.Builder
	e.print(&out, target{"a", "FuzzA"})
	if want := "a.FuzzA: 4 of 5 statements, 80 %\n    2 inputs of its archive are of other values than it takes\n    a.go:3 entered: 4 of 5\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// The types of each target in this tree are found, and inputs of other types are dropped.
func TestValues_OfEachTarget(t *testing.T) {
	t.Chdir("../..")
	targets, err := findTargets(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range targets {
		if takes, err := one.takes(); err != nil || takes == "" {
			t.Errorf("%s takes %q, %v", one, takes, err)
		}
	}
	folder := t.TempDir()
	const head = "go test fuzz v1\n"
	for n, content := range []string{head + "[]byte(\"a\")\nstring(\"b\")\n", head + "[]byte(\"a\")\n", head + "string(\"b\")\n[]byte(\"a\")\n"} {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprint(n)), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dropped, err := target{"internal/guest", "FuzzTakenOver"}.dropStrange(folder)
	if left, _ := os.ReadDir(folder); err != nil || dropped != 2 || len(left) != 1 || left[0].Name() != "0" {
		t.Errorf("%d are dropped, %v are left (%v)", dropped, left, err)
	}
}
