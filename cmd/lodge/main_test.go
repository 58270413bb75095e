package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/cli/clitest"
)

// lodge runs the command line and returns its output.
func lodge(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return clitest.Run(t, command(), args...)
}

func TestWhatIsAskedWronglyHasAStatusOfItsOwn(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"start"}, "lodge start SELECTOR..."},
		{[]string{"strat", "all"}, "(did you mean start?)"},
		{[]string{"tile", "lst"}, "(did you mean ls?)"},
		{[]string{"version", "of", "what"}, "lodge version"},
		{[]string{"start", "--nonsense", "all"}, "--nonsense"},
		{[]string{"start", "--timeout", "soon", "all"}, "soon"},
		{[]string{"stop", "all", "--socket", nowhere}, nowhere},
		{[]string{"ps", "--socket", nowhere}, nowhere},
		{[]string{"top", "--sort", "colour"}, "colour"},
		{[]string{"memory", "--socket", nowhere}, nowhere},
		{[]string{"memory", "-o", "yaml"}, "yaml"},
		{[]string{"events", "--after", "yesterday"}, "yesterday"},
		{[]string{"define", nowhere}, nowhere},
		{[]string{"define", t.TempDir()}, "no *.xml"},
		{[]string{"set", "all", "memory"}, "KEY=VALUE"},
		{[]string{"tile", "create", "web"}, "--template"},
		{[]string{"tile", "create", "web", "--template", nowhere}, nowhere},
		{[]string{"clone", "golden"}, "lodge clone SOURCE NAME..."},
		{[]string{"clone", "golden", "web", "--user-data", nowhere}, "--seed"},
		{[]string{"clone", "golden", "web", "--seed", "--user-data", nowhere}, nowhere},
		{[]string{"check", "--socket", nowhere}, nowhere},
		{[]string{"nonsense"}, "nonsense"},
	} {
		out, err := lodge(t, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) || cli.StatusOf(err) != cli.Unusable {
			t.Errorf("lodge %s: %v\n%s", strings.Join(c.args, " "), err, out)
		}
	}
}

func TestDocumentsAreReadFromWhereTheyAre(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b.xml": "second", "a.xml": "first", "note.txt": "no document"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readDocuments(strings.NewReader("spoken"), []string{dir, "-", filepath.Join(dir, "a.xml")})
	if want := []string{"first", "second", "spoken", "first"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
}
