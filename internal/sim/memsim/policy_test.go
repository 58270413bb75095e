package memsim

import (
	"slices"
	"strings"
	"testing"
)

func TestParseSetup_Refused(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "there are: esx, lodge, mom, next, now",
		"mmo":                   `policy "mmo" is not known`,
		"static:util=1":         "has no parameters",
		"next:utill=1":          `unknown field "utill"`,
		"next:util=many":        "not KEY=JSON",
		"next:util":             "not KEY=JSON",
		"next:lazy=1":           "cannot unmarshal number",
		"next@per":              `"per" is not KEY=NUMBER`,
		"next@per=0":            "stat_period is 0",
		"next@dly=1e6":          "stat_delay is 1e+06",
		"next@work=1":           "with a key of: F, auto",
		"next:util=.9@per=1,=2": "not KEY=JSON",
	} {
		if _, err := ParseSetup(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestParseSetup_ParametersAndChanges(t *testing.T) {
	s, err := ParseSetup("next:util=0.9;lazy=false;H=7;half=8@per=1,dly=0,auto=1")
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.policy()
	if err != nil {
		t.Fatal(err)
	}
	got := p.(*next).nextParameters
	want := tunedNext()
	want.Util, want.Lazy, want.Horizon, want.HalfLife = .9, false, 7, 8
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	g := Guest{StatPeriod: 5, StatDelay: 2}
	s.amend(&g)
	if g.StatPeriod != 1 || g.StatDelay != 0 || !g.AutoDeflate {
		t.Errorf("%+v", g)
	}
}

func TestPercentile_LikeSorting(t *testing.T) {
	for _, n := range []int{1, 2, 7, 100, 101, 1000} {
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(i*7919%n/3) / 10 // with repetitions
		}
		sorted := slices.Sorted(slices.Values(values))
		at := float64(n-1) * quantile
		low, high := sorted[int(at)], sorted[min(int(at)+1, n-1)]
		want := float64(low) + float64(high-low)*(at-float64(int(at)))
		if got := percentile(values); !near(float64(got), want) {
			t.Errorf("%d values: %v, want %v", n, got, want)
		}
	}
}

func TestLargestAhead_LikeLooking(t *testing.T) {
	const stride, seconds, ahead = 3, 50, 4
	from, to := make([]float64, stride*seconds), make([]float64, stride*seconds)
	for i := range from {
		from[i] = float64(i * 7919 % 101)
	}
	largestAhead(to[1:], from[1:], stride, oracleForecast{ahead: ahead, margin: 2})
	for second := range seconds {
		want := 0.0
		for s := second; s <= min(second+ahead, seconds-1); s++ {
			want = max(want, 2*from[s*stride+1])
		}
		if got := to[second*stride+1]; got != want {
			t.Errorf("second %d: %v, want %v", second, got, want)
		}
	}
}

// A report is what the reference prints: carried ends at the first factor that fails, and lists without phases are null.
func TestEvaluate_Report(t *testing.T) {
	setup, err := ParseSetup("static")
	if err != nil {
		t.Fatal(err)
	}
	reports, err := Evaluate(t.Context(), []string{"testdata/step.jsonl", "testdata/hogs.jsonl"}, setup, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"step", "hogs"} {
		r := reports[i]
		if r.Trace != name || len(r.P99) != 36 || (r.Settle == nil) != (name == "hogs") {
			t.Errorf("%s: %+v", name, r)
		}
		last := slices.Index(r.Factors, r.Carried)
		if last < 0 || last == 35 || r.P99[last] > Slow || r.P99[last+1] <= Slow && r.HostKills[last+1] == 0 {
			t.Errorf("%s: carried %v of %v, 99th percentiles %v", name, r.Carried, r.Factors, r.P99)
		}
	}
	if _, err := Evaluate(t.Context(), nil, setup, []float64{0}); err == nil {
		t.Error("load factor 0 is taken")
	}
	if _, err := Evaluate(t.Context(), []string{"testdata/none"}, setup, nil); err == nil {
		t.Error("a trace that is not there is taken")
	}
}
