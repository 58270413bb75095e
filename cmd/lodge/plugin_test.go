package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/cli"
)

// place makes the test believe that this program lies in a folder of its own, with another folder
// on PATH. It returns both. Programs are not run: calls reports those that would be, with their arguments.
func place(t *testing.T) (beside, onPath string, calls *[]string) {
	t.Helper()
	beside, onPath, calls = t.TempDir(), t.TempDir(), &[]string{}
	t.Setenv("PATH", onPath)
	wasOwn, wasBecome := own, become
	t.Cleanup(func() { own, become = wasOwn, wasBecome })
	own = func() (string, error) { return filepath.Join(beside, "lodge"), nil }
	become = func(path string, argv []string) error {
		*calls = append([]string{path}, argv...)
		return errors.New("replaced")
	}
	return beside, onPath, calls
}

func program(t *testing.T, folder, name string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPlugin_OnPathAndBeside(t *testing.T) {
	beside, onPath, calls := place(t)
	want := program(t, onPath, "lodge-extra", 0o755)
	args := []string{"extra", "--flag", "x", "--help"}
	if err := runPlugin(command(), args); err == nil || !slices.Equal(*calls, append([]string{want, want}, args[1:]...)) {
		t.Errorf("on PATH: %v, %q", err, *calls)
	}
	program(t, beside, "lodge-extra", 0o644) // cannot be run
	if err := runPlugin(command(), args); err == nil || (*calls)[0] != want {
		t.Errorf("a file beside that is no program: %v, %q", err, *calls)
	}
	if err := os.Chmod(filepath.Join(beside, "lodge-extra"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := runPlugin(command(), args); err == nil || (*calls)[0] != filepath.Join(beside, "lodge-extra") {
		t.Errorf("beside: %v, %q", err, *calls)
	}
}

func TestPlugin_TakesNoCommandsPlace(t *testing.T) {
	beside, _, calls := place(t)
	for _, name := range []string{"start", "help", "completion", "__complete"} {
		program(t, beside, "lodge-"+name, 0o755)
		if err := runPlugin(command(), []string{name}); err != nil {
			t.Errorf("lodge %s: %v, %q", name, err, *calls)
		}
	}
	for _, args := range [][]string{nil, {""}, {"--extra"}, {"../extra"}, {"nonsense"}} {
		if err := runPlugin(command(), args); err != nil {
			t.Errorf("lodge %q: %v", args, err)
		}
	}
}

func TestPlugin_ThatComesWithLodge(t *testing.T) {
	beside, _, calls := place(t)
	for _, name := range []string{"lab", "import", "store", "probe"} {
		out, err := lodge(t, name, "--json")
		if err == nil || !strings.Contains(err.Error(), "neither beside lodge nor on PATH") || cli.StatusOf(err) != cli.Unusable {
			t.Errorf("lodge %s without its program: %v\n%s", name, err, out)
		}
	}
	lab, daemon := program(t, beside, "lodge-lab", 0o755), program(t, beside, "lodged", 0o755)
	for _, c := range []struct{ args, want []string }{
		{[]string{"lab", "run", "tile", "--fit"}, []string{lab, lab, "run", "tile", "--fit"}},
		{[]string{"lab", "--help"}, []string{lab, lab, "--help"}},
		{[]string{"store", "check", "--data", "x"}, []string{daemon, "lodge", "store", "check", "--data", "x"}},
		{[]string{"--host", "h", "--pki=p", "store", "check"}, []string{daemon, "lodge", "store", "--host", "h", "--pki=p", "check"}},
		{[]string{"--socket", "s", "import", "tree"}, []string{daemon, "lodge", "import", "--socket", "s", "tree"}},
	} {
		if _, err := lodge(t, c.args...); err == nil || !slices.Equal(*calls, c.want) {
			t.Errorf("lodge %q: %v, runs %q, want %q", c.args, err, *calls, c.want)
		}
	}
}
