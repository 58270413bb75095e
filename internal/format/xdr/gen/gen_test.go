package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGenerate_UpToDate(t *testing.T) {
	files, err := generate("..")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the tables say: run go generate ./internal/format/xdr", name)
		}
	}
	there, err := filepath.Glob("../*.gen.go")
	if err != nil || len(there) != len(files) {
		t.Errorf("%d generated files are checked in, want %d (%v)", len(there), len(files), err)
	}
}

func TestParse_TableMistakes(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"unknown word":    {"procedure 1 X :", "line 1: unknown word"},
		"unknown type":    {"struct A : B long", `no type "long"`},
		"unknown limit":   {"struct A : B [Many]int", `no limit "Many"`},
		"field alone":     {"struct A : B", "want \"Name type\""},
		"unknown mark":    {"program remote\ncall 1 X fast :", `line 2: unknown mark "fast"`},
		"number twice":    {"program remote\ncall 1 X :\ncall 1 Y :", "Y 1 is there twice"},
		"name twice":      {"program remote\ncall 1 X :\ncall 2 X :", "X 2 is there twice"},
		"no colon":        {"program remote\ncall 1 X", "want NUMBER NAME MARKS : LAYOUT"},
		"used before":     {"struct A : B C", `no type "C" before this line`},
		"same as nothing": {"program remote\ncall 1 X : = A", `no struct "A"`},
	}
	for name, tt := range tests {
		if err := newTable().parse(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}
