package law

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// wallReadings lists the places where a package strips a time of its monotonic reading. The result must not bound
// a wait or order two events, since the wall clock may be set while the daemon runs. Each entry says its purpose.
var wallReadings = map[string]string{
	"internal/mechanism/agent/agent.go":             "a deadline long past, to end a read",
	"internal/base/failpoint/control.go":            "tells one request of a test from another",
	"internal/guest/savestate/crashdump.go":         "a file's name",
	"internal/guest/provision/agentcommands.go":     "the guest's own clock",
	"internal/guest/statistics/sample.go":           "when the guest's balloon said something, by the guest's word",
	"internal/guest/provision/logs.go":              "a line in a log",
	"internal/guest/machine/restart.go":             "words for an administrator",
	"internal/guest/restart.go":                     "words for an administrator",
	"internal/mechanism/image/cd.go":                "the date on a CD",
	"internal/edge/libvirt/domaincalls/agent.go":    "the guest's own clock",
	"internal/edge/libvirt/domaincalls/allstats.go": "when the guest's balloon said something, shown to a client",
	"internal/edge/libvirt/domaincalls/stats.go":    "as allstats.go",
	"internal/edge/libvirt/networkcalls/network.go": "when a lease ends, by dnsmasq's word, shown to a client",
	"internal/mechanism/hostnet/lease.go":           "when a lease ends, by dnsmasq's word",
	"internal/host/network/statusfiles.go":          "as hostnet/lease.go, shown to the host's name service",
	"internal/mechanism/qemu/afterstart.go":         "when a password ends, as its user said it: on the wall's clock",
	"internal/mechanism/qemu/arguments_machine.go":  "the guest's own clock",
	"internal/mechanism/qmp/session.go":             "a deadline long past, to end a read",
	"internal/mechanism/qmp/message.go":             "when QEMU says that an event was",
	"internal/mechanism/store/open.go":              "a file's name",
}

// A step of the wall clock, a day ahead or a year back, moves no deadline, age or order. Go's times carry a
// monotonic reading until code strips it. time.Since, Until, Sub, Before, After, Compare, timers and contexts use
// that reading. Each place that strips it is listed, with its purpose.
// Promise: F12
func TestClock_NoWaitByWallClock(t *testing.T) {
	found := map[string][]string{}
	eachFile(t, func(name string, files *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if is && takesMonotonicOff(call) {
				found[name] = append(found[name], files.Position(call.Pos()).String())
			}
			return true
		})
	})
	for name, where := range found {
		if wallReadings[name] == "" {
			t.Errorf("%s reads the wall clock alone (%s): keep the time as time.Now gave it, or list the purpose in wallReadings", name, strings.Join(where, ", "))
		}
	}
	for name := range wallReadings {
		if found[name] == nil {
			t.Errorf("%s does not read the wall's clock alone any more: strike it out of wallReadings", name)
		}
	}
}

// eachFile parses the files of all rooms and commands, without tests and generated ones.
func eachFile(t *testing.T, do func(name string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	rooms := readRooms(t)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		top, _ := roomOf(name)
		r, isRoom := rooms[top]
		switch {
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || strings.HasSuffix(name, "test") || isRoom && r.level == tools):
			return fs.SkipDir
		case entry.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"), strings.HasSuffix(name, ".pb.go"), !isRoom:
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err == nil {
			do(name, files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// takesMonotonicOff tells a call that gives a time, or a number, without the monotonic
// reading.
func takesMonotonicOff(call *ast.CallExpr) bool {
	to, is := call.Fun.(*ast.SelectorExpr)
	if !is {
		return false
	}
	if slices.Contains([]string{"Unix", "UnixNano", "UnixMilli", "UnixMicro", "UTC", "Local"}, to.Sel.Name) {
		return true
	}
	if len(call.Args) != 1 || to.Sel.Name != "Round" {
		return false
	}
	zero, is := call.Args[0].(*ast.BasicLit)
	return is && zero.Value == "0"
}
