package law

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

// readParts reads the lines under the heading "Parts of a room": the folders of a room from the bottom up, with "<"
// between the steps. The last one is the room's own folder.
func readParts(t *testing.T) map[string]map[string]int {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := bytes.Cut(page, []byte("\n## Parts of a room\n"))
	_, table, _ := bytes.Cut(section, []byte("```\n"))
	table, _, found := bytes.Cut(table, []byte("```\n"))
	if !found {
		t.Fatal("docs/design.md has no table under the heading Parts of a room")
	}
	rooms := map[string]map[string]int{}
	for line := range strings.Lines(string(table)) {
		room, parts, _ := strings.Cut(strings.TrimSpace(line), ":")
		rooms[room] = map[string]int{}
		step := 0
		for names := range strings.SplitSeq(parts, "<") {
			for name := range strings.SplitSeq(names, ",") {
				rooms[room][strings.TrimSpace(name)] = step
			}
			step++
		}
	}
	return rooms
}

// partOf gives the part of its room that a package belongs to: the first folder below the room, or the room itself.
func partOf(inside, room string) string {
	folders := strings.Split(inside, "/")
	at := slices.Index(folders, room)
	if at < 0 || at+1 == len(folders) {
		return room
	}
	return folders[at+1]
}

func TestParts_ImportDown(t *testing.T) {
	rooms := readParts(t)
	for _, p := range list(t) {
		inside, room, ours := within(p.ImportPath)
		steps := rooms[room]
		if !ours || steps == nil {
			continue
		}
		from := partOf(inside, room)
		step, known := steps[from]
		if !known {
			if !isFake(inside) {
				t.Errorf("%s is no part of %s in docs/design.md", inside, room)
			}
			continue
		}
		for _, path := range p.Imports {
			target, other, ours := within(path)
			if !ours || other != room {
				continue
			}
			to := partOf(target, room)
			if to != from && steps[to] >= step {
				t.Errorf("%s imports %s, which is not below it in docs/design.md", inside, target)
			}
		}
	}
}
