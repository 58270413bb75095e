package workload

import (
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
)

func counted(times ...time.Duration) Count {
	c := Count{Done: int64(len(times)), Bytes: 7, Latency: histogram.New()}
	for _, took := range times {
		histogram.Record(c.Latency, took)
	}
	return c
}

func TestIntervalsComeBackFromTheirTexts(t *testing.T) {
	bad := counted(time.Second)
	bad.Errors, bad.Example = 2, "refused"
	sent := Interval{Start: time.Now().UTC().Round(0), Length: time.Second, Ops: map[string]Count{"a": counted(time.Millisecond, time.Second), "b": bad, "c": {Done: 3}}}
	data, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	var got Interval
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if err := got.Check(); err != nil {
		t.Fatal(err)
	}
	if !got.Start.Equal(sent.Start) || got.Length != sent.Length || len(got.Ops) != 3 || got.Ops["b"].Errors != 2 || got.Ops["b"].Example != "refused" {
		t.Errorf("%s", data)
	}
	if a := got.Ops["a"]; a.Done != 2 || a.Bytes != 7 || !a.Latency.Equals(sent.Ops["a"].Latency) || a.Service != nil {
		t.Errorf("%+v", a)
	}
}

func TestTotalsAddUpAndKeepToThemselves(t *testing.T) {
	start := time.Now()
	first := Interval{Start: start, Length: time.Second, Ops: map[string]Count{"a": counted(time.Millisecond)}}
	second := Interval{Start: start.Add(time.Second), Length: time.Second, Ops: map[string]Count{"a": counted(time.Minute), "b": {Errors: 1, Example: "no"}}}
	var total Total
	for _, i := range []Interval{first, second} {
		if err := total.Add(i); err != nil {
			t.Fatal(err)
		}
	}
	all := total.All()
	if total.Length != 2*time.Second || all.Done != 2 || all.Errors != 1 || all.Example != "no" || all.Latency.TotalCount() != 2 {
		t.Errorf("%+v", total)
	}
	if first.Ops["a"].Latency.TotalCount() != 1 {
		t.Error("the sum changed what it was made of")
	}
}

// What stands for other operations is not counted beside them: the sum is held
// against the servers' own logs.
func TestTheSumIsOfWhatAServerCounts(t *testing.T) {
	total := Total{Ops: map[string]Count{"login": {Done: 3}, "purchase": {Done: 2, Errors: 1}, OpCycle: {Done: 2, Errors: 1}, OpUndone: {Done: 5}, OpSetup: {Done: 7, Bytes: 9}}}
	if all := total.All(); all.Done != 5 || all.Errors != 1 || all.Bytes != 0 {
		t.Errorf("%+v", all)
	}
}

// Promise: L6
func TestIntervalsThatCannotBeAreRefused(t *testing.T) {
	one, err := json.Marshal(counted(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(one, &c); err != nil {
		t.Fatal(err)
	}
	for name, count := range map[string]map[string]any{
		"more done than timed": {"done": 2, "latency": c["latency"]},
		"negative":             {"done": -1},
		"too many":             {"done": 1 << 60},
		"no histogram":         {"done": 1, "latency": "AAAA"},
		"text":                 {"done": "1"},
	} {
		data, err := json.Marshal(map[string]any{"ops": map[string]any{"a": count}})
		if err != nil {
			t.Fatal(err)
		}
		var i Interval
		if err := json.Unmarshal(data, &i); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := Interval{Ops: map[string]Count{}}
	for n := range MaxOps + 1 {
		many.Ops[strconv.Itoa(n)] = Count{}
	}
	for _, i := range []Interval{many, {Length: -1}, {Ops: map[string]Count{"": {}}}} {
		if err := new(Total).Add(i); !fault.Is(err, fault.Invalid) {
			t.Errorf("%d operations, %v: %v", len(i.Ops), i.Length, err)
		}
	}
}
