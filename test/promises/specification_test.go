package promises

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// line is one promise: its number, its words, and the tests that hold it.
type line struct {
	number, words string
	tests         []string
}

// held names a test: `folder.TestName`.
var held = regexp.MustCompile("`([a-z0-9/]+)\\.(Test|Fuzz)([A-Za-z0-9_]+)`")

var number = regexp.MustCompile(`^(~~)?[A-Z][0-9]+(~~)?$`)

func specification(t *testing.T) []line {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "SPECIFICATION.md"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []line
	for row := range strings.Lines(string(text)) {
		cells := strings.Split(row, "|")
		if len(cells) < 5 || !number.MatchString(strings.TrimSpace(cells[1])) {
			continue
		}
		l := line{number: strings.TrimSpace(cells[1]), words: strings.TrimSpace(cells[2])}
		for _, m := range held.FindAllStringSubmatch(cells[3], -1) {
			l.tests = append(l.tests, m[1]+"."+m[2]+m[3])
		}
		lines = append(lines, l)
	}
	return lines
}

// TestEveryPromiseIsHeld: a promise names tests, each of which there is, and no
// number is given twice.
func TestEveryPromiseIsHeld(t *testing.T) {
	lines := specification(t)
	if len(lines) < 10 {
		t.Fatalf("only %d promises are found: has the form of the table changed?", len(lines))
	}
	given := map[string]bool{}
	for _, l := range lines {
		if given[l.number] {
			t.Errorf("%s is given twice", l.number)
		}
		given[l.number] = true
		if len(l.tests) == 0 && !strings.HasPrefix(l.number, "~~") {
			t.Errorf("%s (%s) is held by no test", l.number, l.words)
		}
		for _, test := range l.tests {
			folder, name, _ := strings.Cut(test, ".")
			if !exists(t, folder, name) {
				t.Errorf("%s names %s, which is not in %s", l.number, name, folder)
			}
		}
	}
}

func exists(t *testing.T, folder, name string) bool {
	t.Helper()
	var files []string
	for _, at := range []string{folder, "internal/" + folder, "internal/*/" + folder} {
		found, err := filepath.Glob(filepath.Join(root, at, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("\nfunc "+name+"(")) {
			return true
		}
	}
	return false
}
