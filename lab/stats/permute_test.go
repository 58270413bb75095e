package stats

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func near(got, want, by float64) bool { return math.Abs(got-want) <= by }

func TestUnpairedKnown(t *testing.T) {
	for _, c := range []struct {
		a, b     []float64
		want, by float64
	}{
		// Of the 20 ways to choose three of six, the lowest and the highest are as far apart.
		{[]float64{1, 2, 3}, []float64{4, 5, 6}, 0.1, 0},
		{[]float64{1}, []float64{2, 3, 4}, 0.5, 0},
		{[]float64{5, 5}, []float64{5, 5}, 1, 0},
		{nil, []float64{1}, 1, 0},
		// Too many ways to try them all: only what was measured is as far.
		{ramp(20, 0), ramp(20, 100), 1e-4, 0},
		{ramp(20, 0), ramp(20, 0), 1, 0},
	} {
		if got := Unpaired(c.a, c.b); !near(got, c.want, c.by+1e-12) {
			t.Errorf("%v beside %v: got %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

// Heights of Darwin's maize, crossed and self-fertilized, in eighths of an
// inch: Fisher counted 1,726 of the 32,768 signs as far from none.
func TestPairedKnown(t *testing.T) {
	apart := []float64{49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48}
	if got := Paired(apart, make([]float64, len(apart))); !near(got, 1726.0/32768, 0.007) {
		t.Errorf("Darwin's maize: got %v", got)
	}
	if got := Paired(ramp(10, 5), ramp(10, 1)); got != 2.0/1024 {
		t.Errorf("ten pairs apart in one direction: got %v", got)
	}
	if got := Paired(nil, nil); got != 1 {
		t.Errorf("no pairs: got %v", got)
	}
}

func TestPermutationsKnowNoSidesAndNoUnits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Float64Range(0.001, 1000)
		n := rapid.IntRange(1, 7).Draw(t, "n")
		a, b := rapid.SliceOfN(value, n, n).Draw(t, "a"), rapid.SliceOfN(value, n, n).Draw(t, "b")
		scaled := func(values []float64) []float64 {
			all := make([]float64, len(values))
			for i, v := range values {
				all[i] = 1024 * v
			}
			return all
		}
		for name, test := range map[string]func(a, b []float64) float64{"unpaired": Unpaired, "paired": Paired} {
			p := test(a, b)
			if p <= 0 || p > 1 {
				t.Errorf("%s: p is %v", name, p)
			}
			if q := test(b, a); !near(p, q, 1e-12) {
				t.Errorf("%s: %v one way and %v the other", name, p, q)
			}
			if q := test(scaled(a), scaled(b)); !near(p, q, 1e-12) {
				t.Errorf("%s: %v in one unit and %v in another", name, p, q)
			}
			if q := test(a, a); q != 1 {
				t.Errorf("%s: %v for a thing beside itself", name, q)
			}
		}
	})
}

// The drawn answer comes close to the exact one where both can be had.
func TestDrawnAndExactAgree(t *testing.T) {
	draws := rand.New(rand.NewPCG(7, 8))
	for range 5 {
		a, b := make([]float64, 13), make([]float64, 13)
		for i := range a {
			a[i], b[i] = draws.NormFloat64()+0.6, draws.NormFloat64()
		}
		exact := Paired(a, b)
		// A pair without a difference changes nothing but makes them too many.
		loose := Paired(append(slices.Clone(a), 0), append(slices.Clone(b), 0))
		if !near(exact, loose, 0.02) {
			t.Errorf("exactly %v, drawn %v", exact, loose)
		}
	}
}

func TestTheTestIsAsStrictAsItSays(t *testing.T) {
	draws := rand.New(rand.NewPCG(9, 10))
	const tries = 400
	var alarms [2]int
	for range tries {
		a, b := make([]float64, 8), make([]float64, 8)
		for i := range a {
			a[i], b[i] = draws.ExpFloat64(), draws.ExpFloat64()
		}
		// Seven beside seven are dealt out in 3,432 ways: all are tried.
		for i, p := range []float64{Unpaired(a[:7], b[:7]), Paired(a, b)} {
			if p < 0.05 {
				alarms[i]++
			}
		}
	}
	for i, n := range alarms {
		// 20 are due; 40 come by chance once in a hundred thousand times.
		if n > 40 {
			t.Errorf("test %d: %d alarms of %d without a cause", i, n, tries)
		}
	}
}

// The values that one thing took on a host, dealt out to two: nothing parts
// them, and nothing is found.
func TestNoVerdictOnAThingBesideItself(t *testing.T) {
	draws := rand.New(rand.NewPCG(11, 12))
	for _, r := range recorded(t) {
		const tries = 20
		matters := max(Matters, Noise(r.Values))
		for range tries {
			draws.Shuffle(len(r.Values), func(i, j int) { r.Values[i], r.Values[j] = r.Values[j], r.Values[i] })
			half := len(r.Values) / 2
			a, b := r.Values[:half], r.Values[half:]
			// The interval takes no part, and most of the time.
			unpaired := Comparison{Ratio: Ratio{Value: Median(a) / Median(b)}, P: Unpaired(logs(a), logs(b))}
			paired := Comparison{Ratio: Ratio{Value: Median(a) / Median(b)}, P: Paired(logs(a), logs(b))}
			if f, g := unpaired.Find(matters), paired.Find(matters); f != Same || g != Same {
				t.Errorf("%s beside itself: %v (p %v), in pairs %v (p %v)", r.Of, f, unpaired.P, g, paired.P)
			}
		}
		if n := Noise(r.Values); !(n > 0 && n < 0.6) {
			t.Errorf("%s: a noise of %v", r.Of, n)
		}
	}
}

// What is really another is found, in both directions.
func TestVerdictOnWhatWasSlowed(t *testing.T) {
	for _, r := range recorded(t) {
		slowed := make([]float64, len(r.Values)/2)
		for i := range slowed {
			slowed[i] = 1.5 * r.Values[i]
		}
		rest := r.Values[len(r.Values)/2:]
		if c := Compare(slowed, rest); c.Find(0.05) != More || c.Ratio.Low < 1.05 {
			t.Errorf("%s, half as slow again: %+v", r.Of, c)
		}
		if c := ComparePairs(rest, slowed); c.Find(0.05) != Less || c.Ratio.High > 0.95 {
			t.Errorf("%s, beside what is half as slow again: %+v", r.Of, c)
		}
	}
}

type recording struct {
	Of     string
	Values []float64
}

// recorded gives times that were measured on a host with two processors, in the
// order in which they were.
func recorded(t *testing.T) []recording {
	text, err := os.ReadFile("testdata/recorded.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []recording
	if err := json.Unmarshal(text, &all); err != nil || len(all) == 0 {
		t.Fatalf("%d recordings: %v", len(all), err)
	}
	return all
}

func ramp(n int, from float64) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = from + float64(i)
	}
	return all
}

// Lists that are as far apart as lists can be reach the least chance there is.
func TestTheLeastChanceIsThatOfListsFarApart(t *testing.T) {
	far := func(n int, base float64) (values []float64) {
		for i := range n {
			values = append(values, base+float64(i))
		}
		return values
	}
	for _, c := range []struct{ a, b int }{{1, 1}, {3, 3}, {6, 6}, {4, 7}, {20, 20}} {
		if got, want := Unpaired(far(c.a, 1000), far(c.b, 0)), LeastUnpaired(c.a, c.b); !near(got, want, 1e-12) {
			t.Errorf("%d beside %d: %v, and the least is %v", c.a, c.b, got, want)
		}
	}
	for _, n := range []int{1, 5, 8, 13} {
		if got, want := Paired(far(n, 1000), far(n, 0)), LeastPaired(n); !near(got, want, 1e-12) {
			t.Errorf("%d pairs: %v, and the least is %v", n, got, want)
		}
	}
	if LeastPaired(20) != LeastUnpaired(20, 20) || LeastPaired(0) != 1 || LeastUnpaired(0, 3) != 1 {
		t.Error("drawn chances have one bound, and of nothing nothing is told")
	}
}
