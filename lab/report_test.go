package lab

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/machine"
)

var update = flag.Bool("update", false, "write testdata anew")

func exampleRun(name string, slower float64) *Run {
	r := &Run{
		Header: Header{
			Schema: Schema, Name: name, Started: time.Date(2026, 11, 20, 18, 0, 0, 0, time.UTC), Command: "make bench",
			Host: machine.Host{
				Processor: "Processor 9000", Processors: 2, Memory: 24 << 30, Kernel: "6.12.1",
				Virtual: true, Accelerator: "tcg", Load: 0.25,
			},
			Server:    Server{Process: name, Library: "9.0.0", Hypervisor: "7.2.22"},
			Arguments: []string{"-name", "guest=a<b>,debug-threads=on"},
		},
		Skipped: []Skipped{{"memory with 64 guests", "there is not enough of it"}},
		End:     Ending{Took: 12.3, Load: 0.75, Steal: 0.0123},
	}
	for i := range 5 {
		wobble := 1 + float64(i-2)/100
		r.add(StartGuest, ByDaemon, 0, 0.050*slower*wobble)
		r.add(StartGuest, ByBare, 0, 0.040*wobble)
		r.add(EndGuest, ByDaemon, 0, 0.005*slower*wobble)
		r.add(DefineDisks, ByDaemon, 0, 0.0005*slower*wobble)
	}
	for n, mib := range map[int]float64{0: 20, 8: 21} {
		r.add(Resident, ByDaemon, n, mib*(1<<20))
		r.add(Private, ByDaemon, n, mib*(1<<19))
		r.add(Threads, ByDaemon, n, 9+float64(n))
	}
	return r
}

func TestReport(t *testing.T) {
	elsewhere := exampleRun("elsewhere", 3)
	elsewhere.Host.Kernel = "6.1.0"
	elsewhere.Host.Load = 1.5
	report := NewReport([]*Run{exampleRun("lodged", 1), exampleRun("libvirtd", 5), elsewhere})
	for path, got := range map[string]string{"testdata/report.txt": report.Text(), "testdata/report.md": report.Markdown()} {
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got; if meant: go test ./lab -update):\n%s", path, diff)
		}
	}
}

func TestARunComesBackFromItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.ndjson")
	run := exampleRun("lodged", 1)
	if err := run.Save(path); err != nil {
		t.Fatal(err)
	}
	back, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(run, back); diff != "" {
		t.Error(diff)
	}
}

func TestReadRefusesWhatIsNoRun(t *testing.T) {
	var whole bytes.Buffer
	if err := exampleRun("lodged", 1).Write(&whole); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSpace(whole.String()), "\n")
	for name, text := range map[string]string{
		"nothing":        "",
		"words":          "figures\n",
		"cut short":      strings.Join(lines[:len(lines)-1], ""),
		"half a line":    whole.String()[:whole.Len()/2],
		"no beginning":   strings.Join(lines[1:], ""),
		"another schema": strings.Replace(whole.String(), Schema, "lodge.lab.start/99", 1),
		"more than that": whole.String() + `{"gossip":{}}`,
	} {
		if _, err := Read(strings.NewReader(text)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestIntoPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "figures.md")
	report := Report{Notes: []string{"first"}}
	if err := report.IntoPage(path); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	own := append([]byte("# My page\n\nOf mine.\n\n"), bytes.TrimPrefix(page, []byte("# Figures\n\n"))...)
	own = append(own, "\nThe end.\n"...)
	if err := os.WriteFile(path, own, 0o644); err != nil {
		t.Fatal(err)
	}
	report.Notes = []string{"second"}
	for range 2 { // twice is once
		if err := report.IntoPage(path); err != nil {
			t.Fatal(err)
		}
	}
	page, err = os.ReadFile(path)
	if want := strings.Replace(string(own), "- first", "- second", 1); err != nil || string(page) != want {
		t.Errorf("the page is now\n%s, want\n%s (%v)", page, want, err)
	}

	if err := os.WriteFile(path, []byte("no marks\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := report.IntoPage(path); !fault.Is(err, fault.Invalid) {
		t.Errorf("a page without marks: %v", err)
	}
	if page, _ := os.ReadFile(path); string(page) != "no marks\n" {
		t.Errorf("it was written all the same: %q", page)
	}
}
