package law

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the checkout, seen from this package.
const root = "../.."

// tools is the level of what stands outside the rooms; commands is that of
// what puts them together.
const (
	tools    = -1
	commands = 100
)

// whole is the room that opens all others. Every room's tests may import it.
const whole = "daemon"

// room is one line of the table in docs/design.md.
type room struct {
	name       string
	level      int
	folder     string   // of its level
	neighbours []string // of its own level, that it may import all the same; for a tool, levels too
	inTests    []string // the same for its tests only
	module     bool     // it is a module of its own, which the root module does not import
}

// may says whether the room may import another one, and why not.
func (r room) may(other room) (bool, string) {
	switch {
	case r.name == other.name || slices.Contains(r.neighbours, other.name):
		return true, ""
	case r.level == tools && slices.Contains(r.neighbours, other.folder):
		return true, ""
	case other.module:
		return false, other.name + " is a module of its own: the root module does not import it"
	case r.level == tools:
		return false, r.name + " is a tool: it speaks to Lodge over public protocols only"
	case other.level == tools && r.level != commands:
		return false, other.name + " is a tool, no part of Lodge"
	case other.level == commands:
		return false, "nobody imports a command"
	case other.level > r.level:
		return false, fmt.Sprintf("%s (level %d) stands above %s (level %d)", other.name, other.level, r.name, r.level)
	case other.level == r.level:
		return false, fmt.Sprintf("%s and %s are neighbours on level %d", r.name, other.name, r.level)
	}
	return true, ""
}

var (
	levelPattern      = regexp.MustCompile(`^(\d) (\w+)`)
	roomPattern       = regexp.MustCompile(`^(?:(?:\d |tools)?[\w() ]* )?([a-z]+)/ +\S`)
	neighboursPattern = regexp.MustCompile(`\(imports ([a-z, ]+)(?:; in tests ([a-z, ]+))?\)`)
)

// readRooms reads the table of rooms in docs/design.md.
func readRooms(t *testing.T) map[string]room {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := bytes.Cut(page, []byte("\n## Rooms\n"))
	_, table, _ := bytes.Cut(section, []byte("```\n"))
	table, _, found := bytes.Cut(table, []byte("```\n"))
	if !found {
		t.Fatal("docs/design.md has no table under the heading Rooms")
	}
	rooms := map[string]room{"cmd": {name: "cmd", level: commands}}
	level, folder := commands, ""
	for text := range strings.Lines(string(table)) {
		if number := levelPattern.FindStringSubmatch(text); number != nil {
			level, _ = strconv.Atoi(number[1])
			folder = number[2]
		} else if strings.HasPrefix(text, "tools ") {
			level, folder = tools, ""
		}
		name := roomPattern.FindStringSubmatch(text)
		if name == nil {
			continue
		}
		r := room{name: name[1], level: level, folder: folder, module: strings.Contains(text, "a module of its own")}
		if list := neighboursPattern.FindStringSubmatch(text); list != nil {
			r.neighbours = strings.Split(list[1], ", ")
			r.inTests = strings.Split(list[2], ", ")
		}
		rooms[r.name] = r
	}
	return rooms
}

func TestDesignTable_Parsed(t *testing.T) {
	rooms := readRooms(t)
	for name, level := range map[string]int{
		"fault": 0, "domain": 1, "lifecycle": 2, "xdr": 3, "store": 4, "network": 5, "guest": 6, "fleet": 7, "libvirt": 8,
		"daemon": 9, "cmd": commands, "conformance": tools, "testguest": tools,
	} {
		if got, known := rooms[name]; !known || got.level != level {
			t.Errorf("room %s: known %v, level %d, want level %d", name, known, got.level, level)
		}
	}
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"guest", "qmp", true},
		{"qmp", "guest", false},
		{"qemuprobe", "qmp", true},
		{"qemu", "qmp", false},
		{"qmp", "qemuprobe", false},
		{"network", "volume", false},
		{"domain", "device", true},
		{"device", "domain", false},
		{"qmp", "qmp", true},
		{"conformance", "libvirt", false},
		{"libvirt", "conformance", false},
		{"cmd", "libvirt", true},
		{"cmd", "cli", true},
		{"cmd", "lab", false},
		{"conformance", "lab", false},
		{"lab", "lab", true},
		{"lab", "xdr", true},
		{"lab", "guest", false},
		{"sim", "lifecycle", true},
		{"sim", "fault", true},
		{"sim", "qmp", false},
		{"guest", "sim", false},
		{"cmd", "sim", true},
		{"libvirt", "cmd", false},
		{"daemon", "guest", true},
		{"cmd", "daemon", true},
		{"libvirt", "daemon", false},
	} {
		if got, why := rooms[c.from].may(rooms[c.to]); got != c.want {
			t.Errorf("%s may import %s: %v (%s), want %v", c.from, c.to, got, why, c.want)
		}
	}
}
