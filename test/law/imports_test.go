package law

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/lodge-kvm/lodge/"

// listed is what `go list -json` says of one package.
type listed struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func list(t *testing.T) []listed {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...", "./lab/...")
	command.Dir = root
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var all []listed
	decoder := json.NewDecoder(stdout)
	for {
		var one listed
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	if err := command.Wait(); err != nil {
		t.Fatal(err)
	}
	return all
}

// within gives the path of a package inside the project, and the room that it
// belongs to.
func within(path string) (inside, room string, ours bool) {
	inside, ours = strings.CutPrefix(path, module)
	room, _ = roomOf(inside)
	return inside, room, ours
}

// roomOf gives the room of a folder of the project, and the level that its path says: internal/LEVEL/ROOM, or
// internal/ROOM, or, outside of internal, the first folder. Such a path says no level.
func roomOf(folder string) (room, level string) {
	rest, is := strings.CutPrefix(folder, "internal/")
	if is {
		first, below, deeper := strings.Cut(rest, "/")
		if deeper && slices.Contains([]string{"edge", "control", "host", "mechanism", "format", "decision", "word", "base"}, first) {
			level, rest = first, below
		}
	}
	room, _, _ = strings.Cut(rest, "/")
	return room, level
}

// isFake tells the packages that hold a room's fake.
func isFake(inside string) bool { return strings.HasSuffix(inside, "test") }

func TestImports_GoDown(t *testing.T) {
	rooms := readRooms(t)
	for _, p := range list(t) {
		inside, name, ours := within(p.ImportPath)
		if !ours {
			continue // the module's root
		}
		from, known := rooms[name]
		if _, level := roomOf(inside); level != "" && level != from.folder {
			t.Errorf("%s lies in %s, and docs/design.md has it in %s", inside, level, from.folder)
		}
		if !known {
			t.Errorf("%s is in no room of docs/design.md: give it a place in the table, or another name", inside)
			continue
		}
		check := func(imports []string, inTest bool) {
			for _, path := range imports {
				target, name, ours := within(path)
				if !ours {
					continue
				}
				opens := inTest && (name == whole && from.level != tools || slices.Contains(from.inTests, name))
				if allowed, why := from.may(rooms[name]); !allowed && !opens {
					t.Errorf("%s imports %s: %s", inside, target, why)
				}
				if name == "sim" && from.name != "sim" && inside != "cmd/lodge-sim" {
					t.Errorf("%s imports %s: only cmd/lodge-sim imports a simulator", inside, target)
				}
				if isFake(target) && !inTest && !isFake(inside) {
					t.Errorf("%s imports the fake %s outside its tests", inside, target)
				}
			}
		}
		check(p.Imports, false)
		check(p.TestImports, true)
		check(p.XTestImports, true)
	}
}
