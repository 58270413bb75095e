package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values  []float64
		q, want float64
	}{
		{[]float64{7}, 0.95, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{10, 0}, 0.95, 9.5},
		{[]float64{1, 2, 3, 4, 5}, 0, 1},
		{[]float64{1, 2, 3, 4, 5}, 1, 5},
		{[]float64{1, 2, 3, 4, 5}, 0.25, 2},
	} {
		if got := Quantile(c.values, c.q); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("quantile %v of %v: got %v, want %v", c.q, c.values, got, c.want)
		}
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("nothing has a median")
	}
	values := []float64{3, 1, 2}
	if Median(values); values[0] != 3 {
		t.Error("the values were put into another order")
	}
}

func TestRatioOfConstants(t *testing.T) {
	if got := MedianRatio([]float64{6, 6, 6}, []float64{2, 2}); got != (Ratio{3, 3, 3}) {
		t.Errorf("got %v", got)
	}
	if got := MedianRatio(nil, []float64{1}); !math.IsNaN(got.Value) || !math.IsNaN(got.Low) {
		t.Errorf("got %v of nothing", got)
	}
}

// Two values on one side, one on the other: a median of two draws is 1, 2 or 3
// with chances of a quarter, a half and a quarter, so 95 percent reach from 1 to 3.
func TestIntervalThatIsKnown(t *testing.T) {
	if got := MedianRatio([]float64{1, 3}, []float64{1}); got != (Ratio{2, 1, 3}) {
		t.Errorf("got %v", got)
	}
	// Of nine ones and a hundred, a median of ten draws is one nearly always.
	if got := MedianRatio([]float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 100}, []float64{1}); got != (Ratio{1, 1, 1}) {
		t.Errorf("one wild value moved the interval: %v", got)
	}
}

func TestIntervalsHoldTheTruth(t *testing.T) {
	draws := rand.New(rand.NewPCG(1, 2))
	values := func(n int, scale float64) []float64 {
		all := make([]float64, n)
		for i := range all {
			all[i] = scale * math.Exp(0.2*draws.NormFloat64())
		}
		return all
	}
	const trials, truth = 20, 1.3
	held := 0
	for range trials {
		r := MedianRatio(values(15, truth), values(15, 1))
		if r.Low > r.Value || r.High < r.Value {
			t.Errorf("%v is outside its own interval", r)
		}
		if r.Low <= truth && truth <= r.High {
			held++
		}
	}
	if held < trials*85/100 {
		t.Errorf("only %d of %d intervals hold the truth", held, trials)
	}
	few, many := MedianRatio(values(15, truth), values(15, 1)), MedianRatio(values(240, truth), values(240, 1))
	if many.High-many.Low > (few.High-few.Low)/2 {
		t.Errorf("sixteen times as many values take the interval from %v to %v", few, many)
	}
}

func TestTheSameValuesGiveTheSameInterval(t *testing.T) {
	a, b := []float64{5, 1, 4, 2, 8}, []float64{3, 1, 2}
	if MedianRatio(a, b) != MedianRatio(a, b) {
		t.Error("two intervals of one set of values differ")
	}
}
