package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Line is a straight line through points, by least squares.
type Line struct {
	Slope Ratio   // what one more of x adds to y, with its interval
	At0   float64 // y where x is 0
}

// FitLine draws the line through the points (x[i], y[i]). The interval of its
// slope is a bootstrap: points are drawn anew with replacement, again and again.
// With fewer than two different x the slope is NaN. The lists must be of one
// length.
func FitLine(x, y []float64) Line {
	if len(x) != len(y) {
		panic("stats: points of lists of different lengths")
	}
	slope, at0 := leastSquares(x, y)
	line := Line{Ratio{slope, math.NaN(), math.NaN()}, at0}
	if math.IsNaN(slope) {
		return line
	}
	draws := rand.New(rand.NewPCG(uint64(len(x)), 4))
	slopes := make([]float64, 0, resamples)
	drawnX, drawnY := make([]float64, len(x)), make([]float64, len(y))
	for range resamples {
		for i := range x {
			j := draws.IntN(len(x))
			drawnX[i], drawnY[i] = x[j], y[j]
		}
		// A draw of one x again and again has no slope.
		if s, _ := leastSquares(drawnX, drawnY); !math.IsNaN(s) {
			slopes = append(slopes, s)
		}
	}
	slices.Sort(slopes)
	line.Slope.Low = quantile(slopes, (1-confidence)/2)
	line.Slope.High = quantile(slopes, (1+confidence)/2)
	return line
}

// FitPower draws the line through the logarithms, and so says with which power
// of x it is that y grows: 1 is in proportion, 2 with the square. All must be
// above zero.
func FitPower(x, y []float64) Line { return FitLine(logs(x), logs(y)) }

func leastSquares(x, y []float64) (slope, at0 float64) {
	n := float64(len(x))
	meanX, meanY := total(x)/n, total(y)/n
	var xx, xy float64
	for i := range x {
		xx += (x[i] - meanX) * (x[i] - meanX)
		xy += (x[i] - meanX) * (y[i] - meanY)
	}
	if len(x) == 0 || !(xx > 0) {
		return math.NaN(), math.NaN()
	}
	return xy / xx, meanY - xy/xx*meanX
}
