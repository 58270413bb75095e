package pages

import (
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/lab/record"
)

// newNative is a run in guests, of which a repetition does a part of what the same
// stack does outside of them.
func newNative(parts ...float64) synthetic {
	s := newSynthetic(len(parts))
	s.arms, s.native = [2]string{"guest", "native"}, true
	s.rate = func(arm, repetition, _, _ int) int64 {
		if arm == 1 {
			return 100
		}
		return int64(100 * parts[repetition-1])
	}
	return s
}

// Promise: L47
func TestEfficiencyIsOfTheSameRepetitions(t *testing.T) {
	out := shown(t, newNative(0.8, 0.9, 1.1).keep(t))
	has(t, out,
		"Efficiency of web at tiles=1: the guests do 90.0 % (95 % 80.0–110 %) of what the same stack does outside of a guest.",
		"Efficiency: No verdict on 2 comparisons of 2: 3 and 3 repetitions, 8 each are wanted.",
		"arm native    outside of a guest, on the lab's own host: no daemon, no QEMU, no accelerator",
		"web at tiles=1  "+strings.Repeat("█", 36)+strings.Repeat("░", 4)+" 90.0 %",
	)
	has(t, row(t, out, efficiencyTitle, "web, guest"), "tiles=1", "done in a second", "  90.0", "  100", "90.0 %", "80.0–110 %", "3")
	for _, no := range []string{"Arms beside", "native against", "NaN"} {
		if strings.Contains(out, no) {
			t.Errorf("it says %q:\n%s", no, out)
		}
	}
	out = shown(t, newNative(slices.Repeat([]float64{0.5}, 10)...).keep(t))
	has(t, out, "Efficiency: throughput of web at tiles=1, in guests against outside of one, is less: 0.50 times")
}

func TestThePageShowsEfficiency(t *testing.T) {
	html := paged(t, newNative(0.5, 0.5).keep(t))
	for _, want := range []string{">Efficiency of web<", "Throughput of web, in guests and outside", "of what is done outside of a guest", ">50.0 %<", "the same stack outside of a guest"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %s", want)
		}
	}
}

// One instance on bare metal in the place of two guests is named with what it has, and
// no tile of it is missing.
// Promise: L46
func TestGuestsAgainstOneInstanceOutsideOfThem(t *testing.T) {
	s := newNative(0.5, 0.5)
	s.instead = map[string]string{"tiles": "1"}
	dir := s.keep(t)
	html, out := paged(t, dir), shown(t, dir)
	has(t, out,
		"Efficiency of web at tiles=1: the guests do 50.0 %",
		"Efficiency of web at tiles=2, against native (tiles=1): the guests do 100 % of what the same stack does outside of a guest.",
		"arm native    outside of a guest, on the lab's own host: no daemon, no QEMU, no accelerator tiles=1",
	)
	has(t, row(t, out, efficiencyTitle, "web, guest, against native"), "tiles=2", "  100", "100 %")
	_, together, _ := strings.Cut(out, "\nTiles together\n\n")
	if together, _, _ = strings.Cut(together, "\n\n"); !strings.Contains(together, "web, guest") || strings.Contains(together, "web, native") {
		t.Errorf("tiles together, of which one instance has one:\n%s", together)
	}
	if !strings.Contains(html, "tiles=2, against native (tiles=1)<") {
		t.Error("the pictures do not name it")
	}
}

// Promise: L47
func TestWhatIsNotToBeBelievedIsNoEfficiency(t *testing.T) {
	s := newNative(0.5, 0.5)
	s.more = func(w *record.Writer, turn record.Turn) {
		if turn.Arm == "native" && turn.Step == "tiles=1" {
			check(t, w.Event(record.Event{Turn: turn, Kind: record.Bad, What: "books", Text: "they differ"}))
		}
	}
	out := shown(t, s.keep(t))
	has(t, row(t, out, efficiencyTitle, "web, guest"), "tiles=1", "books disagree there")
	if strings.Contains(out, "Efficiency of web at tiles=1:") || !strings.Contains(out, "Efficiency of web at tiles=2:") {
		t.Errorf("it says\n%s", out)
	}
}

// Promise: L47
func TestARunThatCannotBeOutsideSaysWhy(t *testing.T) {
	run, err := record.Load(newNative(0.5).keep(t))
	check(t, err)
	run.Samples = slices.DeleteFunc(run.Samples, func(s record.Sample) bool { return s.Arm == "native" })
	run.Events = append(run.Events, record.Event{Turn: record.Turn{Arm: "native", Repetition: 1, Step: "tiles=1"}, Kind: record.Skipped, What: record.WhatOutside, Text: "target here is on another host"})
	f, err := newFacts(run)
	check(t, err)
	has(t, f.text(), "Efficiency was not measured: target here is on another host.")
	if strings.Contains(f.text(), efficiencyTitle) {
		t.Error("there is a table without anything in it")
	}
}

// What ran outside of a guest is on no side of a comparison of daemons, and between
// two runs tells of the host.
// Promise: L47
func TestWhatIsOutsideOfGuestsIsNoDaemons(t *testing.T) {
	trio := newTrio(2, func(string, int) float64 { return 50 })
	trio.arms, trio.native = [2]string{"", "native"}, true
	out := compared(t, Comparing{}, trio)
	has(t, out, "Left out of it is native, which ran outside of a guest and is no daemon's", "again beside first", "other beside first")
	for line := range strings.Lines(out) {
		if strings.Contains(line, "throughput") && strings.Contains(line, "native") || strings.Contains(line, "only") {
			t.Errorf("it says %s", line)
		}
	}
	a, b := newNative(0.5, 0.5), newNative(0.5, 0.5)
	b.target.Daemon = "other"
	guests := a.rate
	b.rate = func(arm, repetition, tiles, tile int) int64 {
		return guests(arm, repetition, tiles, tile) * int64(1+arm)
	}
	out = compared(t, Comparing{}, a, b)
	has(t, row(t, out, "B beside A, tiles=1", "throughput of web"), "50.0 1/s", "1.00")
	has(t, row(t, out, "B outside of guests beside A outside of guests, tiles=1", "throughput of web"), "100 1/s", "200 1/s", "2.00")
}
