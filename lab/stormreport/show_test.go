package stormreport

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/storm"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s is to be %s (go test -update writes it anew):\n%s", name, path, d)
	}
}

// kept writes a run to a file.
func kept(t *testing.T, r *storm.Run, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := r.Save(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// shown reports on files, and gives the text, the page with pictures and the page
// of Markdown.
func shown(t *testing.T, paths ...string) (text, html, page string) {
	t.Helper()
	dir := t.TempDir()
	var out strings.Builder
	if err := Show(paths, &out, Output{HTML: filepath.Join(dir, "r.html"), Markdown: filepath.Join(dir, "r.md")}); err != nil {
		t.Fatal(err)
	}
	var files [2]string
	for i, name := range []string{"r.html", "r.md"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[i] = string(data)
	}
	return out.String(), files[0], files[1]
}

func TestReportOnAnInventedStorm(t *testing.T) {
	text, _, page := shown(t, kept(t, synthetic(5), "synthetic.ndjson"))
	golden(t, "synthetic.txt", text)
	golden(t, "synthetic.md", page)
}

// A small storm that was really measured, on a host that was busy with other
// things, of lodged and libvirt's own daemon: the latter blocks.
func TestReportOnARecordedStorm(t *testing.T) {
	text, html, page := shown(t, filepath.Join("testdata", "small.ndjson.gz"))
	golden(t, "small.txt", text)
	golden(t, "small.md", page)
	if i := strings.Index(html, "%!"); i >= 0 {
		t.Errorf("words are badly put together: %.60q", html[max(0, i-40):])
	}
	if n := strings.Count(html, "<svg "); n < 15 {
		t.Errorf("%d pictures", n)
	}
}

func TestStormsAreKnownByTheirFirstLine(t *testing.T) {
	r := synthetic(1)
	other := filepath.Join(t.TempDir(), "start.ndjson")
	if err := os.WriteFile(other, []byte(`{"run":{"schema":"lodge.lab.start/1"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		kept(t, r, "a.ndjson"): true, kept(t, r, "a.ndjson.gz"): true, other: false, filepath.Join(t.TempDir(), "none"): false,
	} {
		if got := Holds(path); got != want {
			t.Errorf("%s: %v", filepath.Base(path), got)
		}
	}
}

func TestStormsOfTwoHostsAreNotMixed(t *testing.T) {
	a, b := synthetic(1), synthetic(1)
	b.Host.Processors++
	err := Show([]string{kept(t, a, "a.ndjson"), kept(t, b, "b.ndjson")}, &strings.Builder{}, Output{})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("got %v", err)
	}
	// Another load is the same host.
	b = synthetic(1)
	b.Host.Load = 1.5
	if err := Show([]string{kept(t, a, "a.ndjson"), kept(t, b, "b.ndjson")}, &strings.Builder{}, Output{}); err != nil {
		t.Error(err)
	}
}

func TestStormsOfMoreClientsAreNotMixedWithThoseOfFewer(t *testing.T) {
	a, b := synthetic(1), synthetic(1)
	b.Clients = 8
	err := Show([]string{kept(t, a, "a.ndjson"), kept(t, b, "b.ndjson")}, &strings.Builder{}, Output{})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "64 clients and another by 8") {
		t.Errorf("got %v", err)
	}
}

// What a storm leaves of itself in the load average is nobody else's work.
func TestALoadThatTheStormBeforeLeftIsNoTrouble(t *testing.T) {
	for wait, want := range map[time.Duration]bool{0: false, time.Hour: true} {
		first, second := synthetic(1), synthetic(1)
		second.Started = first.Started.Add(time.Duration(first.End.Took)*time.Second + wait)
		second.Host.Load = 24
		var out strings.Builder
		if err := Show([]string{kept(t, first, "a.ndjson"), kept(t, second, "b.ndjson")}, &out, Output{}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "other work was going on"); got != want {
			t.Errorf("%s after another storm: %v", wait, got)
		}
	}
}

func TestAStormWithoutADaemonIsRefused(t *testing.T) {
	r := synthetic(1)
	r.Targets = r.Targets[1:2]
	if err := Show([]string{kept(t, r, "a.ndjson")}, &strings.Builder{}, Output{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("got %v", err)
	}
	if err := Show(nil, &strings.Builder{}, Output{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("no file: got %v", err)
	}
}

// The page's own words and the other figures stay where they are.
func TestTablesGoBetweenTheirMarks(t *testing.T) {
	page := filepath.Join(t.TempDir(), "figures.md")
	before := "# Figures\n\n<!-- start figures: written by lodge lab -->\nold start\n<!-- end of start figures -->\nwords\n" +
		"<!-- storm figures: written by lodge lab -->\nold storm\n<!-- end of storm figures -->\nthe end\n"
	if err := os.WriteFile(page, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Show([]string{kept(t, synthetic(1), "a.ndjson")}, &strings.Builder{}, Output{Markdown: page}); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{"old start": true, "words": true, "the end": true, "old storm": false, "### What was promised": true} {
		if strings.Contains(string(after), text) != want {
			t.Errorf("%q is there: %v", text, !want)
		}
	}
}
