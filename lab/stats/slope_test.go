package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The first of Anscombe's four: y = 3.00 + 0.500 x.
func TestLineKnown(t *testing.T) {
	x := []float64{10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5}
	y := []float64{8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68}
	l := FitLine(x, y)
	if !near(l.Slope.Value, 0.50009, 1e-5) || !near(l.At0, 3.00009, 1e-5) {
		t.Errorf("got %+v", l)
	}
	if !(l.Slope.Low < 0.45 && l.Slope.Low > 0.1 && l.Slope.High > 0.55 && l.Slope.High < 0.9) {
		t.Errorf("an interval from %v to %v", l.Slope.Low, l.Slope.High)
	}
}

func TestPowerKnown(t *testing.T) {
	for _, power := range []float64{0, 1, 1.5} {
		var n, cost []float64
		for _, x := range []float64{1, 4, 16, 64, 256, 1000} {
			n, cost = append(n, x), append(cost, 0.02*math.Pow(x, power))
		}
		l := FitPower(n, cost)
		if !near(l.Slope.Value, power, 1e-9) || !near(l.Slope.Low, power, 1e-9) || !near(l.Slope.High, power, 1e-9) || !near(math.Exp(l.At0), 0.02, 1e-9) {
			t.Errorf("power %v: got %+v", power, l)
		}
	}
}

func TestNoLineThroughOneX(t *testing.T) {
	for _, x := range [][]float64{nil, {1}, {2, 2, 2}} {
		if l := FitLine(x, x); !math.IsNaN(l.Slope.Value) || !math.IsNaN(l.Slope.Low) {
			t.Errorf("%v: got %+v", x, l)
		}
	}
}

func TestSlopesHoldTheTruth(t *testing.T) {
	draws := rand.New(rand.NewPCG(5, 6))
	const trials, truth = 20, 1.1
	held := 0
	for range trials {
		var x, y []float64
		for _, n := range []float64{1, 4, 16, 64, 256, 1000} {
			for range 4 {
				x, y = append(x, n), append(y, math.Pow(n, truth)*math.Exp(0.1*draws.NormFloat64()))
			}
		}
		if s := FitPower(x, y).Slope; s.Low <= truth && truth <= s.High {
			held++
		}
	}
	if held < trials*80/100 {
		t.Errorf("only %d of %d intervals hold the truth", held, trials)
	}
}
