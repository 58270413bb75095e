package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/lab/campaign"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// ending is the status of a run that has told these events, and what is said of it.
func ending(t *testing.T, events ...record.Event) (cli.Status, string) {
	t.Helper()
	dir, turn := t.TempDir(), record.Turn{Arm: "plain", Repetition: 1, Step: "all"}
	w, err := record.Create(dir, record.Header{ID: "lab-x", Plan: record.Plan{Turns: []record.Turn{turn}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range append([]record.Event{{Kind: record.Begin}}, events...) {
		e.Turn, e.Time = turn, time.Now()
		err = errors.Join(err, w.Event(e))
	}
	if err = errors.Join(err, w.Finish(turn), w.Seal(record.Complete)); err != nil {
		t.Fatal(err)
	}
	return ended(t.Context(), t, dir, nil)
}

func ended(ctx context.Context, t *testing.T, dir string, failure error) (cli.Status, string) {
	t.Helper()
	c := labRunCommand()
	c.SetContext(ctx)
	err := labEnding(c, dir, failure)
	if err == nil {
		return cli.AllDone, ""
	}
	return cli.StatusOf(err), err.Error()
}

// Promise: L34
func TestHowARunOfTheLabEnds(t *testing.T) {
	skipped := record.Event{Kind: record.Skipped, What: "guests", Text: "no huge pages"}
	failed := record.Event{Kind: record.Failed, What: "boot", Guest: "lab-x-t1-web", Text: "no answer"}
	for _, c := range []struct {
		what   string
		events []record.Event
		want   cli.Status
		says   string
	}{
		{"well", []record.Event{{Kind: record.Change}, {Kind: record.Note}, {Kind: record.Window}}, cli.AllDone, ""},
		{"results", []record.Event{{Kind: record.Bad, What: record.WhatBound}, {Kind: record.Bad, What: record.WhatWarmup}}, cli.AllDone, ""},
		{"skipped", []record.Event{skipped}, labSkipped, "1 skipped: guests: no huge pages"},
		{"failed", []record.Event{skipped, failed}, labFailed, "1 failed, 1 skipped: boot of lab-x-t1-web: no answer; guests: no huge pages"},
		{"books", []record.Event{{Kind: record.Bad, What: "books", Text: "5 and 4"}}, labFailed, "books: 5 and 4"},
		{"many", []record.Event{failed, failed, failed, failed}, labFailed, "4 failed: "},
		{"done again", []record.Event{failed, {Kind: record.Begin}}, cli.AllDone, ""},
	} {
		if got, says := ending(t, c.events...); got != c.want || !strings.Contains(says, c.says) || strings.Count(says, "no answer") > mostReasons {
			t.Errorf("%s: %d, %q", c.what, got, says)
		}
	}
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("interrupt"))
	if got, says := ended(stopped, t, t.TempDir(), context.Cause(stopped)); got != cli.WasCancelled || says != "interrupt" {
		t.Errorf("interrupted: %d, %q", got, says)
	}
	if got, _ := ended(t.Context(), t, t.TempDir(), errors.New("no daemon")); got != cli.SomeFailed {
		t.Errorf("one that could not go on: %d", got)
	}
	if labSkipped != 4 || labFailed != 5 { // as the help says
		t.Errorf("%d, %d", labSkipped, labFailed)
	}
}

// Promise: L58
func TestHowAStormEnds(t *testing.T) {
	unasked := &storm.Run{Header: storm.Header{Schema: storm.Schema}, Skipped: []storm.Skipped{{Reason: "nobody to kill", Unasked: true}}}
	dir := t.TempDir()
	if err := unasked.Save(filepath.Join(dir, campaign.StormValues)); err != nil {
		t.Fatal(err)
	}
	if got, says := ended(t.Context(), t, dir, nil); got != cli.AllDone {
		t.Errorf("what nobody asked for is skipped: %d, %q", got, says)
	}
	for reasons, want := range map[int]cli.Status{0: cli.AllDone, 1: labSkipped, 9: labSkipped} {
		dir, run := t.TempDir(), &storm.Run{Header: storm.Header{Schema: storm.Schema}}
		for i := range reasons {
			run.Skipped = append(run.Skipped, storm.Skipped{Reason: fmt.Sprintf("reason %d", i)})
		}
		if err := run.Save(filepath.Join(dir, campaign.StormValues)); err != nil {
			t.Fatal(err)
		}
		if got, says := ended(t.Context(), t, dir, nil); got != want || reasons > 0 && !strings.Contains(says, fmt.Sprintf("%d skipped: reason 0", reasons)) {
			t.Errorf("%d steps were skipped: %d, %q", reasons, got, says)
		}
	}
}
