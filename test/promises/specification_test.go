package promises

import (
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

var update = flag.Bool("update", false, "count the tests of each promise into SPECIFICATION.md")

var (
	// row is a promise in the table: number, words, count of tests, figure.
	row = regexp.MustCompile(`^\| ((?:~~)?[A-Z][0-9]+(?:~~)?) \| (.*) \| ([0-9]*) \| (.*) ?\|\n$`)
	// holds is what stands above a test that holds promises.
	holds = regexp.MustCompile(`(?m)^// Promise: ([A-Z0-9, ]+)\nfunc ((?:Test|Fuzz)\w+)\(`)
	said  = regexp.MustCompile(`(?m)^// Promise:`)
)

// heldBy gives the tests that say that they hold a promise, by its number.
func heldBy(t *testing.T) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata"):
			return fs.SkipDir
		case entry.IsDir(), !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found := holds.FindAllStringSubmatch(string(text), -1)
		if all := said.FindAll(text, -1); len(all) != len(found) {
			t.Errorf("%s: of %d lines with promises %d stand right above a test", path, len(all), len(found))
		}
		folder, _ := filepath.Rel(root, filepath.Dir(path))
		for _, m := range found {
			for number := range strings.SplitSeq(m[1], ", ") {
				tests[number] = append(tests[number], folder+"."+m[2])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests
}

// TestSpecification_EachPromiseHasTests: a promise is held by a test, no number is given twice, and a test
// names only promises that there are. The table has the counts.
func TestSpecification_EachPromiseHasTests(t *testing.T) {
	tests, page := heldBy(t), filepath.Join(root, "SPECIFICATION.md")
	before, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var after strings.Builder
	given := map[string]bool{}
	for line := range strings.Lines(string(before)) {
		m := row.FindStringSubmatch(line)
		if m == nil {
			after.WriteString(line)
			continue
		}
		number := strings.Trim(m[1], "~")
		if given[number] {
			t.Errorf("%s is given twice", number)
		}
		given[number] = true
		held := tests[number]
		t.Logf("%s: %s", number, strings.Join(held, " "))
		count := ""
		switch struck := m[1] != number; {
		case len(held) > 0:
			count = strconv.Itoa(len(held))
		case !struck:
			t.Errorf("%s (%s) is held by no test", number, m[2])
		}
		fmt.Fprintf(&after, "| %s | %s | %s | %s |\n", m[1], m[2], count, strings.TrimSpace(m[4]))
	}
	if len(given) < 10 {
		t.Fatalf("only %d promises are found: has the form of the table changed?", len(given))
	}
	for _, number := range slices.Sorted(maps.Keys(tests)) {
		if !given[number] {
			t.Errorf("%s hold %s, which is no promise", tests[number], number)
		}
	}
	if after.String() == string(before) {
		return
	}
	if !*update {
		t.Fatal("SPECIFICATION.md has other counts of tests: run go test ./test/promises -update")
	}
	if err := os.WriteFile(page, []byte(after.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
