package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
)

// lodge runs the command line and gives what it prints.
func lodge(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := command()
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func TestProbeSaysWhyAnAcceleratorDoesNotWork(t *testing.T) {
	var out bytes.Buffer
	err := showCapabilities(&out, &qemucaps.Capabilities{
		Binary: qemucaps.Identity{Path: "/usr/bin/qemu"}, Arch: "x86_64", Version: qemucaps.Version{Major: 7, Minor: 2, Micro: 22},
		Machines: []qemucaps.Machine{{Name: "pc-q35-7.2", Alias: "q35", MaxCPUs: 288}, {Name: "pc-q35-7.1"}},
		Accelerators: []qemucaps.Accelerator{
			{Name: "kvm", Reason: "the guest did not run"},
			{Name: "tcg", Usable: true, Reason: "a trial guest ran", HostModel: qemucaps.HostModel{Base: "EPYC"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"/usr/bin/qemu: QEMU 7.2.22, x86_64\n",
		"  kvm: does not work: the guest did not run\n",
		"  tcg: works: a trial guest ran\n    processor models: 0; -cpu host: does not work; nearest to the host: EPYC\n",
		"  q35 = pc-q35-7.2, up to 288 processors\n  and 2 in all\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

func TestWhatCannotBeDoneSaysWhy(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"probe", nowhere}, nowhere},
		{[]string{"lab", "start", "--socket", nowhere}, nowhere},
		{[]string{"lab", "start", "--socket", "sock"}, "neither a path"},
		{[]string{"lab", "start", "--samples", "0"}, "--samples"},
		{[]string{"lab", "report", nowhere}, nowhere},
		{[]string{"lab", "report"}, "arg"},
		{[]string{"lab", "compare"}, "arg"},
		{[]string{"lab", "compare", nowhere, nowhere}, nowhere},
		{[]string{"nonsense"}, "nonsense"},
		{[]string{"lab", "nonsense"}, "nonsense"},
	} {
		if out, err := lodge(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("lodge %s: %v\n%s", strings.Join(c.args, " "), err, out)
		}
	}
}

func TestReportShowsKeptValues(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	out, err := lodge(t, "lab", "report", "../../docs/figures/lodged.ndjson", "--markdown", page)
	if err != nil || !strings.Contains(out, "start of a guest, lodged") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestWhatIsAskedWronglyHasAStatusOfItsOwn(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"start"}, "lodge start SELECTOR..."},
		{[]string{"strat", "all"}, "(is it start?)"},
		{[]string{"tile", "lst"}, "(is it ls?)"},
		{[]string{"version", "of", "what"}, "lodge version"},
		{[]string{"start", "--nonsense", "all"}, "--nonsense"},
		{[]string{"start", "--timeout", "soon", "all"}, "soon"},
		{[]string{"stop", "all", "--socket", nowhere}, nowhere},
		{[]string{"ps", "--socket", nowhere}, nowhere},
		{[]string{"top", "--sort", "colour"}, "colour"},
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
		if err == nil || !strings.Contains(err.Error(), c.want) || status(err) != cli.Unusable {
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

// The tables of tiles in docs/figures.md can be made again from the record beside it.
func TestReportShowsTheTilesThatAreKept(t *testing.T) {
	out, err := lodge(t, "lab", "report", "../../docs/lab/tile-mini")
	for _, want := range []string{"Mechanism check, not a performance result", "Loads and servers have counted the same", "outside requests"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%q is not said: %v\n%s", want, err, out)
		}
	}
}
