package stormreport

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/stats"
	"github.com/lodge-kvm/lodge/lab/storm"
)

func TestAPromiseIsHeldByItsInterval(t *testing.T) {
	for _, c := range []struct {
		value, low, high float64
		repeats          int
		want             standing
	}{
		{1.1, 1.05, 1.15, 5, met},
		{1.1, 1.05, 1.16, 5, unclear},
		{1.3, 1.1, 1.4, 5, unclear},
		{1.3, 1.2, 1.4, 5, unmet},
		{1.1, 1.1, 1.1, 2, unclear}, // two values have no interval to speak of
		{1.3, 1.3, 1.3, 1, unclear},
		{0.5, 0.5, 0.5, 1, met},
		{2.4, 2.4, 2.4, 1, unmet},
		{math.NaN(), math.NaN(), math.NaN(), 5, unmeasured},
	} {
		var o outcome
		o.hold(stats.Ratio{Value: c.value, Low: c.low, High: c.high}, 1.15, c.repeats)
		if o.Standing != c.want {
			t.Errorf("%+v: got %s", c, o.Standing)
		}
		if o.Standing == unclear && o.Why == "" {
			t.Errorf("%+v: unclear without a reason", c)
		}
	}
}

// stands is how a promise stands after a change to the invented storm, which
// meets them all.
func stands(t *testing.T, what string, change func(*storm.Run)) outcome {
	t.Helper()
	r := synthetic(5)
	change(r)
	f, err := gather([]*storm.Run{r})
	if err != nil {
		t.Fatal(err)
	}
	kind, _, _ := strings.Cut(what, " ") // all of them would take a while
	for _, p := range promises {
		if !strings.HasPrefix(p.what, kind) {
			continue
		}
		if o := f.outcome(p); strings.HasPrefix(o.What, what) {
			return o
		}
	}
	t.Fatalf("no promise begins with %q", what)
	return outcome{}
}

func TestWhatGoesWrongIsNotMet(t *testing.T) {
	ofGood := func(c storm.Cell, s storm.Scenario) bool { return c.Target == "good" && c.Scenario == s }
	for name, c := range map[string]struct {
		what   string
		change func(*storm.Run)
		want   standing
		why    string
	}{
		"nothing": {"start 256", func(*storm.Run) {}, met, ""},
		"slower": {"start 256", func(r *storm.Run) {
			for i := range r.Samples {
				if ofGood(r.Samples[i].Cell, storm.Start) && r.Samples[i].Guests == 256 {
					r.Samples[i].Value *= 1.5
				}
			}
		}, unmet, ""},
		"one call blocked": {"statistics of all", func(r *storm.Run) {
			for _, c := range r.Calls {
				if ofGood(c.Cell, storm.Stats) && c.Case == storm.Idle {
					r.Blocked = append(r.Blocked, storm.Blocked{Cell: c.Cell, Metric: storm.MetricStats, After: 45})
					return
				}
			}
		}, unmet, "had not ended"},
		"one call failed": {"resume one", func(r *storm.Run) {
			for i := range r.Calls {
				if c := &r.Calls[i]; ofGood(c.Cell, storm.Wedge) && c.Case == storm.Wedged && c.Metric == storm.MetricResume {
					r.Calls = append(r.Calls, storm.Calls{Cell: c.Cell, Metric: c.Metric, Outcome: storm.Refused, Code: 1, Text: "no more of that", Took: []int64{1}})
					return
				}
			}
		}, unmet, "1 call failed: no more of that"},
		"a kind of call blocked": {"other calls", func(r *storm.Run) {
			for _, c := range r.Calls {
				if ofGood(c.Cell, storm.Wedge) && c.Case == storm.Wedged && c.Metric == storm.MetricList {
					r.Blocked = append(r.Blocked, storm.Blocked{Cell: c.Cell, Metric: storm.MetricList, After: 45})
					return
				}
			}
		}, unmet, "had not ended"},
		"a kind of call failed that is not the slowest": {"other calls", func(r *storm.Run) {
			for _, c := range r.Calls {
				if ofGood(c.Cell, storm.Wedge) && c.Case == storm.Wedged {
					for _, m := range []storm.Metric{storm.MetricList, storm.MetricUndefine} {
						r.Calls = append(r.Calls, storm.Calls{Cell: c.Cell, Metric: m, Outcome: storm.Refused, Code: 1, Took: []int64{1}})
					}
					return
				}
			}
		}, unmet, "1 call of"},
		"a kind of call never ended well": {"other calls", func(r *storm.Run) {
			r.Calls = slices.DeleteFunc(r.Calls, func(c storm.Calls) bool {
				return ofGood(c.Cell, storm.Wedge) && c.Case == storm.Wedged && c.Metric == storm.MetricDefine
			})
		}, unmeasured, "no define ended"},
		"one time did not come up again": {"adopt", func(r *storm.Run) {
			r.Samples = slices.DeleteFunc(r.Samples, func(s storm.Sample) bool {
				if !ofGood(s.Cell, storm.Adopt) || s.Repeat != 2 {
					return false
				}
				r.Skipped = append(r.Skipped, storm.Skipped{Cell: s.Cell, Reason: "nobody answers"})
				return s.Metric == storm.MetricAdopt
			})
			r.Skipped = r.Skipped[:len(r.Skipped)-1] // one for both its samples
		}, unclear, "1 repetition gave no value: nobody answers"},
		"too large": {"memory", func(r *storm.Run) {
			for i := range r.Samples {
				if r.Samples[i].Target == "good" && r.Samples[i].Metric == storm.MetricResident {
					r.Samples[i].Value += 60 << 20
				}
			}
		}, unmet, ""},
		"a thread for each guest": {"threads", func(r *storm.Run) {
			for i := range r.Samples {
				if s := &r.Samples[i]; s.Target == "good" && s.Metric == storm.MetricThreads {
					s.Value += float64(s.Guests)
				}
			}
		}, unmet, ""},
		"each costs more than the one before": {"growth", func(r *storm.Run) {
			for i := range r.Samples {
				if s := &r.Samples[i]; ofGood(s.Cell, storm.Thousand) && s.Metric == "start.each" {
					s.Value *= math.Sqrt(float64(s.Guests))
				}
			}
		}, unmet, "beyond the growth of the bare command line"},
		"not in the plan": {"adopt", func(r *storm.Run) {
			r.Samples = slices.DeleteFunc(r.Samples, func(s storm.Sample) bool { return s.Scenario == storm.Adopt })
		}, unmeasured, "not in the plan"},
		"given up": {"adopt", func(r *storm.Run) {
			r.Samples = slices.DeleteFunc(r.Samples, func(s storm.Sample) bool { return s.Scenario == storm.Adopt })
			r.Skipped = append(r.Skipped, storm.Skipped{Cell: storm.Cell{Scenario: storm.Adopt, Target: "good"}, Reason: "nobody to kill"})
		}, unmeasured, "nobody to kill"},
		"at another size": {"destroy 64", func(r *storm.Run) {
			r.Samples = slices.DeleteFunc(r.Samples, func(s storm.Sample) bool { return s.Guests == 256 })
			r.Calls = slices.DeleteFunc(r.Calls, func(c storm.Calls) bool { return c.Guests == 256 })
		}, met, "the promise is of 256 guests"},
		"nothing to compare with": {"start 256", func(r *storm.Run) {
			r.Samples = slices.DeleteFunc(r.Samples, func(s storm.Sample) bool { return strings.HasSuffix(s.Target, "-direct") })
		}, unmeasured, "nothing to hold it against"},
	} {
		o := stands(t, c.what, c.change)
		if o.Standing != c.want || !strings.Contains(o.Why, c.why) || c.why == "" && o.Why != "" {
			t.Errorf("%s: %s, because %q; want %s, because %q", name, o.Standing, o.Why, c.want, c.why)
		}
	}
}

// A drift that slows everything does not part targets of one repetition.
func TestRepetitionsAreComparedWithThemselves(t *testing.T) {
	o := stands(t, "start 256", func(r *storm.Run) {
		for i := range r.Samples {
			r.Samples[i].Value *= math.Pow(3, float64(r.Samples[i].Repeat))
		}
	})
	if o.Standing != met {
		t.Errorf("%s: %s %s", o.Standing, o.Ratio, o.Why)
	}
}

func TestAFindingWantsEnoughRepetitions(t *testing.T) {
	for repeats, want := range map[int]string{3: "too few repetitions to test", 8: "slower", 14: "slower"} {
		f, err := gather([]*storm.Run{synthetic(repeats)})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range f.comparison().Rows {
			if got := row[len(row)-1]; got != want {
				t.Errorf("%d repetitions, %s: %s", repeats, row[0], got)
			}
		}
	}
}

// The same daemon under two names: nothing is found.
func TestNoFindingOnADaemonBesideItself(t *testing.T) {
	r := synthetic(14)
	r.Samples = slices.DeleteFunc(r.Samples, func(s storm.Sample) bool { return s.Target == "slow" })
	// Every good value also stands for the other, a repetition later.
	for _, s := range slices.Clone(r.Samples) {
		if s.Target == "good" {
			s.Target, s.Repeat = "slow", s.Repeat%14+1
			r.Samples = append(r.Samples, s)
		}
	}
	f, err := gather([]*storm.Run{r})
	if err != nil {
		t.Fatal(err)
	}
	rows := f.comparison().Rows
	if len(rows) == 0 {
		t.Fatal("nothing was compared")
	}
	for _, row := range rows {
		if got := row[len(row)-1]; got != "none shown" {
			t.Errorf("%s beside itself: %s", row[0], got)
		}
	}
}

func TestNumbersReadWell(t *testing.T) {
	for s, want := range map[float64]string{
		0: "0 s", 0.00000123: "1.23 µs", 0.000999: "999 µs", 0.0009996: "1.00 ms", 0.0123: "12.3 ms", 0.9996: "1.00 s", 45: "45.0 s", 1234: "1234 s", math.NaN(): "–",
	} {
		if got := duration(s); got != want {
			t.Errorf("%v s: got %q, want %q", s, got, want)
		}
	}
	for word, want := range map[string]string{"a-b=c,d": "a-b=c,d", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "{\"a\":1}": `'{"a":1}'`} {
		if got := quoted(word); got != want {
			t.Errorf("%q: got %s", word, got)
		}
	}
}

// The p99 of fewer than 100 calls is the longest.
func TestAPercentileLeavesOutNoMoreThanItsPart(t *testing.T) {
	for n, want := range map[int]float64{10: 1, 60: 1, 99: 1, 100: 0.001, 150: 1, 200: 0.001} {
		h := histogram.New()
		for i := range n {
			took := int64(1000)
			if i == 0 || i == 1 && n == 150 {
				took = 1_000_000
			}
			if err := h.RecordValue(took); err != nil {
				t.Fatal(err)
			}
		}
		if got := seconds(h, 0.99); math.Abs(got-want) > want/100 {
			t.Errorf("of %d calls the p99 is %v s, want %v s", n, got, want)
		}
	}
}
