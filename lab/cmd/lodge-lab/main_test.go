package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/cli/clitest"
)

// lodgeLab runs the command line and gives what it prints.
func lodgeLab(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return clitest.Run(t, command(), args...)
}

func TestWhatCannotBeDoneSaysWhy(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"start", "--socket", nowhere}, nowhere},
		{[]string{"--socket", nowhere, "start"}, nowhere},
		{[]string{"--socket", "s", "--host=h", "--pki", "p", "report", nowhere}, nowhere},
		{[]string{"report", "--socket", "s", nowhere}, nowhere},
		{[]string{"start", "--socket", "sock"}, "neither a path"},
		{[]string{"start", "--samples", "0"}, "--samples"},
		{[]string{"report", nowhere}, nowhere},
		{[]string{"report"}, "arg"},
		{[]string{"compare"}, "arg"},
		{[]string{"compare", nowhere, nowhere}, nowhere},
		{[]string{"nonsense"}, "nonsense"},
	} {
		if out, err := lodgeLab(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("lodge lab %s: %v\n%s", strings.Join(c.args, " "), err, out)
		}
	}
}

func TestReportShowsKeptValues(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	out, err := lodgeLab(t, "report", "../../../docs/figures/lodged.ndjson", "--markdown", page)
	if err != nil || !strings.Contains(out, "start of a guest, lodged") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The tables of tiles in docs/figures.md can be made again from the record beside it.
func TestReportShowsTheTilesThatAreKept(t *testing.T) {
	out, err := lodgeLab(t, "report", "../../../docs/lab/tile-mini")
	for _, want := range []string{"Mechanism check, not a performance result", "Loads and servers have counted the same", "outside requests"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%q is not said: %v\n%s", want, err, out)
		}
	}
}
