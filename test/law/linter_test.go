package law

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the rules of the linter anew from docs/design.md")

const (
	begin = "        # rooms: from docs/design.md, by go test ./test/law -update\n"
	end   = "        # rooms: end\n"
)

// TestLinterHoldsTheSameLaw compares depguard's rules, which tell an author
// while writing, with the table.
func TestLinterHoldsTheSameLaw(t *testing.T) {
	const path = root + "/.golangci.yml"
	config, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := bytes.Cut(config, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		t.Fatalf("%s has no place for the rules between %q and %q", path, begin, end)
	}
	want := slices.Concat(before, []byte(begin), depguard(readRooms(t)), []byte(end), after)
	if bytes.Equal(config, want) {
		return
	}
	if !*update {
		t.Fatal("the linter's rules differ from docs/design.md: run go test ./test/law -update")
	}
	if err := os.WriteFile(path, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

// depguard says for each room which others it may import; a command may import
// all. A room's name is given twice, so that domain does not allow domainxml. A rule
// of its own says that only tests and commands import the whole daemon.
func depguard(rooms map[string]room) []byte {
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(rooms)) {
		from := rooms[name]
		if from.level == commands {
			continue
		}
		var allowed []string
		for _, other := range slices.Sorted(maps.Keys(rooms)) {
			if may, _ := from.may(rooms[other]); may || other == whole && from.level != tools {
				allowed = append(allowed, module+other+"$", module+other+"/")
			}
		}
		fmt.Fprintf(&out, "        %s:\n          list-mode: lax\n          files: [\"${config-path}/%s/**\"]\n", name, name)
		fmt.Fprintf(&out, "          deny: [{pkg: %s, desc: \"not below %s in docs/design.md\"}]\n", module, name)
		fmt.Fprintf(&out, "          allow: [%s]\n", strings.Join(allowed, ", "))
	}
	fmt.Fprintf(&out, "        whole:\n          list-mode: lax\n          files: [$all, \"!$test\", \"!${config-path}/cmd/**\"]\n")
	fmt.Fprintf(&out, "          deny: [{pkg: %s%s$, desc: \"for lodged and tests\"}]\n", module, whole)
	return out.Bytes()
}
