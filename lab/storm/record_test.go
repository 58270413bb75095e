package storm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/remote"
)

func TestVeryManyTimesAreKeptAsAHistogram(t *testing.T) {
	c := Calls{Metric: MetricConnect, Outcome: Done}
	for i := range maxTook + 1000 {
		c.Took = append(c.Took, int64(100+i))
	}
	want, err := c.Times()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.pack(); err != nil || c.Took != nil || c.Histogram == "" || len(c.Histogram) > 20_000 {
		t.Fatalf("%v: %d times and %d bytes", err, len(c.Took), len(c.Histogram))
	}
	got, err := c.Times()
	if err != nil || got.TotalCount() != want.TotalCount() {
		t.Fatalf("%v: %d values", err, got.TotalCount())
	}
	for _, q := range []float64{0, 50, 99, 100} {
		if got, want := got.ValueAtQuantile(q), want.ValueAtQuantile(q); got != want {
			t.Errorf("quantile %v: %d, want %d", q, got, want)
		}
	}
	few := Calls{Took: []int64{0, 5}}
	if err := few.pack(); err != nil || len(few.Took) != 2 {
		t.Errorf("few times: %v, %v", few.Took, err)
	}
}

func TestReadRefusesWhatIsNoRun(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "schema",
		"{}":                                    "schema",
		`{"run":{}}`:                            "not the values",
		`{"storm":{"schema":"other/1"}}`:        "other/1",
		`{"storm":{"schema":"lodge.lab.st`:      "not the values",
		`{"storm":{"schema":"` + Schema + `"}}`: "cut short",
	} {
		if _, err := Read(strings.NewReader(text)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := (&Calls{Histogram: "nonsense"}).Times(); !fault.Is(err, fault.Invalid) {
		t.Errorf("a broken histogram: %v", err)
	}
}

func TestOutcomes(t *testing.T) {
	refusal := func(code int32) error { return fmt.Errorf("CALL: %w", &remote.Error{Code: code, Message: "why"}) }
	for _, c := range []struct {
		err  error
		mild bool
		want Outcome
	}{
		{nil, false, Done},
		{fmt.Errorf("CALL: %w", errCut), false, Cut},
		{refusal(codeOperationTimeout), true, TimedOut},
		{refusal(codeOperationInvalid), false, Refused},
		{refusal(codeOperationInvalid), true, Conflict},
		{refusal(codeOperationAborted), true, Conflict},
		{refusal(1), true, Refused},
		{errors.New("gone"), true, Refused},
	} {
		if got, _, _ := (result{time.Second, c.err}).outcome(c.mild); got != c.want {
			t.Errorf("%v, mild %v: %s, want %s", c.err, c.mild, got, c.want)
		}
	}
	groups := group(MetricStart, []result{{2, nil}, {3000, refusal(1)}, {4000, nil}, {5000, refusal(9)}, {6000, refusal(1)}}, false)
	var ends []string
	for _, g := range groups {
		ends = append(ends, fmt.Sprintf("%s %d %v", g.Outcome, g.Code, g.Took))
	}
	if want := []string{"done 0 [0 4]", "refused 1 [3 6]", "refused 9 [5]"}; !slices.Equal(ends, want) {
		t.Errorf("got %q, want %q", ends, want)
	}
}
