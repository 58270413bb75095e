package machine

import "testing"

// A counter that differs from one look to the next by more than clocks drift
// would make a guest's second another one every time.
func TestRateOfTheTimeStampCounter(t *testing.T) {
	first, second := TSC(), TSC()
	if first < 200_000 || first > 10_000_000 {
		t.Errorf("%d kHz is no processor's rate", first)
	}
	if diff := first - second; diff > first/1000 || -diff > first/1000 {
		t.Errorf("%d kHz, and then %d", first, second)
	}
}
