package stats

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestFindWantsBothThresholds(t *testing.T) {
	for _, c := range []struct {
		p, ratio float64
		want     Finding
	}{
		{0.0001, 1.2, More},
		{0.0001, 0.8, Less},
		{0.0001, 1.04, Same}, // sure, and does not matter
		{0.02, 2, Same},      // matters, and is not sure
		{0.0001, math.NaN(), Same},
		{math.NaN(), 2, Same},
	} {
		if got := (Comparison{Ratio: Ratio{Value: c.ratio}, P: c.p}).Find(0.05); got != c.want {
			t.Errorf("p %v, ratio %v: got %v, want %v", c.p, c.ratio, got, c.want)
		}
	}
}

// A host that grows slower and slower parts two lists, but not their pairs.
func TestPairsStandADrift(t *testing.T) {
	var a, b []float64
	for i := range 12 {
		slower := math.Pow(1.2, float64(i))
		a, b = append(a, 1.3*slower), append(b, slower)
	}
	if c := ComparePairs(a, b); c.Find(0.1) != More || !near(c.Ratio.Low, 1.3, 1e-9) || !near(c.Ratio.High, 1.3, 1e-9) {
		t.Errorf("in pairs: %+v", c)
	}
	if c := Compare(a, b); c.Find(0.1) != Same {
		t.Errorf("out of pairs: %+v", c)
	}
}

func TestEffectKnown(t *testing.T) {
	for _, c := range []struct {
		a, b []float64
		want float64
	}{
		{[]float64{1, 2}, []float64{3, 4}, -1},
		{[]float64{3, 4}, []float64{1, 2}, 1},
		{[]float64{1, 2, 3}, []float64{2}, 0},
		{[]float64{1, 3, 3}, []float64{2, 3}, 0}, // 1 is below both, each 3 is above 2
		{[]float64{1, 2, 5}, []float64{2, 3, 4}, (3.0 - 5) / 9},
		{[]float64{2, 2}, []float64{2}, 0},
		{nil, []float64{1}, 0},
	} {
		if got := Effect(c.a, c.b); !near(got, c.want, 1e-12) {
			t.Errorf("%v beside %v: got %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestHolmKnown(t *testing.T) {
	got := Holm([]float64{0.01, 0.04, 0.03, 0.005})
	for i, want := range []float64{0.03, 0.06, 0.06, 0.02} {
		if !near(got[i], want, 1e-12) {
			t.Fatalf("got %v", got)
		}
	}
	if len(Holm(nil)) != 0 {
		t.Error("nothing was corrected into something")
	}
}

func TestHolmIsStricterAndKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOf(rapid.Float64Range(0, 1)).Draw(t, "p")
		before, got := slices.Clone(p), Holm(p)
		if !slices.Equal(before, p) {
			t.Error("what was given was changed")
		}
		for i := range p {
			if got[i] < p[i] || got[i] > min(1, float64(len(p))*p[i])+1e-12 {
				t.Errorf("%v became %v of %d", p[i], got[i], len(p))
			}
			for j := range p {
				if p[i] < p[j] && got[i] > got[j] {
					t.Errorf("%v before %v became %v after %v", p[i], p[j], got[i], got[j])
				}
			}
		}
	})
}

func TestNoiseOfTheStillAndTheLoud(t *testing.T) {
	if got := Noise([]float64{3, 3, 3, 3}); got != 0 {
		t.Errorf("values that are all the same have a noise of %v", got)
	}
	if got := Noise([]float64{1, 2, 3}); !math.IsNaN(got) {
		t.Errorf("three values have a noise of %v", got)
	}
	quiet, loud := ramp(40, 1000), ramp(40, 10)
	if a, b := Noise(quiet), Noise(loud); !(a < b) {
		t.Errorf("%v is not below %v", a, b)
	}
}
