package conformance

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The test runs small versions of all storm scenarios of the lab, against a daemon and the bare command line.
// Nothing may block, and nothing may be left.
// Promise: L1
func TestLab_Storms(t *testing.T) {
	needs(t)
	d := start(t)
	values := filepath.Join(t.TempDir(), "storm.ndjson")
	lab := exec.CommandContext(t.Context(), program(t, "lodge"), "lab", "storm", "--mini", "--direct", "--directory", t.TempDir(),
		"--scenario", "start,define,stats,wedge,save,connect,same,thousand", "--target", "tested="+d.uri(), "--json", values)
	out, err := lab.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(values)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type cell struct{ Scenario, Target, Case, Metric, Outcome, Reason, Text string }
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct{ Sample, Calls, Blocked, Skipped *cell }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		for _, wrong := range []*cell{line.Blocked, line.Skipped} {
			if wrong != nil {
				t.Errorf("%+v", *wrong)
			}
		}
		for _, one := range []*cell{line.Sample, line.Calls} {
			if one != nil {
				seen[one.Scenario+" "+one.Metric+" "+one.Target] = true
			}
		}
		if c := line.Calls; c != nil && c.Metric != "hang" && c.Outcome != "done" && c.Outcome != "conflict" {
			t.Errorf("%+v", *c)
		}
	}
	for _, want := range []string{
		"start start tested", "start start bare tested", "start destroy bare tested", "start threads tested", "define undefine tested",
		"stats stats tested", "wedge event tested", "wedge release tested", "save restore tested", "connect connect tested",
		"same sane tested", "thousand start.each tested", "thousand start.each bare tested", "thousand processor tested",
	} {
		if !seen[want] {
			t.Errorf("%s was not measured", want)
		}
	}
	if err := lines.Err(); err != nil || t.Failed() {
		t.Logf("%v\n%s", err, out)
	}
}
