package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/cli/clitest"
)

const trace = "../../internal/sim/memsim/testdata/step.jsonl"

func TestMemory_JSON(t *testing.T) {
	out, err := clitest.Run(t, command(), "memory", "--trace", trace, "--policy", "static", "--policy", "next:dead=0.04@per=1", "--factor", "0.9,1.1", "--json")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines:\n%s", len(lines), out)
	}
	var report map[string]any
	if err := json.Unmarshal([]byte(lines[1]), &report); err != nil {
		t.Fatal(err)
	}
	// The reference's keys.
	keys := strings.Fields("trace kind half policy bound peak_demand_over_ram grid f carried wall p99 bad worst unmet cache_unmet gswapin hswapin hswapout oom_guest oom_host hot rev rev_steady floor settle settle_balloon moved used")
	for _, key := range keys {
		if report[key] == nil {
			t.Errorf("no %s in %s", key, lines[1])
		}
	}
	if len(report) != len(keys) || report["policy"] != "next:dead=0.04@per=1" || len(report["p99"].([]any)) != 2 {
		t.Errorf("%s", lines[1])
	}
}

func TestMemory_Text(t *testing.T) {
	out, err := clitest.Run(t, command(), "memory", "--trace", trace, "--policy", "static")
	if err != nil || !strings.HasPrefix(out, "step static: bound ") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestMemory_Generate(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "new")
	out, err := clitest.Run(t, command(), "memory", "--generate", folder, "--seed", "q")
	if err != nil || strings.Count(out, "\n") != 12 || !strings.Contains(out, filepath.Join(folder, "q07-liars.jsonl.gz")) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestMemory_WrongUse(t *testing.T) {
	for _, args := range [][]string{
		{"memory"},
		{"memory", "--trace", trace},
		{"memory", "--trace", trace, "--generate", "x", "--policy", "static"},
		{"memory", "--trace", trace, "--policy", "mmo"},
		{"memory", "--trace", trace, "--policy", "static", "--factor", "-1"},
		{"memory", "--trace", "nowhere", "--policy", "static"},
		{"disk"},
	} {
		if out, err := clitest.Run(t, command(), args...); err == nil {
			t.Errorf("lodge-sim %s:\n%s", strings.Join(args, " "), out)
		}
	}
}
