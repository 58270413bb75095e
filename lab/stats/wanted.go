package stats

import "math"

// Most is as many repetitions as anybody is told to make.
const Most = 1000

// Wanted is about how many values each side should have for a difference as large as the
// one that was seen to be found: in nine tries of ten, by a test whose chance of a false
// alarm is below the one given. Paired lists are of one length. It is more than Most where
// so few tell nothing, and where the two do not differ.
func Wanted(a, b []float64, paired bool, alarm float64) int {
	const ninety = 1.2816 // standard errors
	x, y := logs(a), logs(b)
	if len(x) == 0 || len(y) == 0 {
		return Most + 1
	}
	apart, spread := mean(x)-mean(y), variance(x)+variance(y)
	if paired {
		each := make([]float64, len(x))
		for i := range x {
			each[i] = x[i] - y[i]
		}
		spread = variance(each)
	}
	surely := math.Sqrt2 * math.Erfinv(1-alarm)
	errors := surely + ninety
	// The second term is for how little is known of the spread from few values.
	wanted := math.Ceil(errors*errors*spread/(apart*apart) + surely*surely/4)
	if !(wanted <= Most) {
		return Most + 1
	}
	n := max(int(wanted), 2)
	for ; n <= Most; n++ {
		least := LeastUnpaired(n, n)
		if paired {
			least = LeastPaired(n)
		}
		if least < alarm {
			break
		}
	}
	return n
}

func mean(values []float64) float64 { return total(values) / float64(len(values)) }

// variance is that of a sample, and none of one value.
func variance(values []float64) float64 {
	if len(values) < 2 {
		return 0
	}
	m, sum := mean(values), 0.0
	for _, v := range values {
		sum += (v - m) * (v - m)
	}
	return sum / float64(len(values)-1)
}
