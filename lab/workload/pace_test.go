package workload

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/lab/histogram"
)

// slow is a server's side that takes its time.
type slow struct{ takes time.Duration }

func (s slow) close() {}

func (s slow) do(ctx context.Context, intended time.Time, m *meter) error {
	started := time.Now()
	err := ctx.Err()
	if err == nil && !until(ctx, started.Add(s.takes)) {
		err = context.Cause(ctx)
	}
	m.note("x", intended, started, 1, err)
	return err
}

// run is a load to its end in a time of its own.
func run(t testing.TB, load Load) (total Total) {
	t.Helper()
	err := load.Run(context.Background(), func(i Interval) {
		if err := total.Add(i); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}

// expect is what arrivals every gap make of a server with so many hands who each
// take their time: worked out by hand, one arrival after the other.
func expect(arrivals, hands int, gap, takes, timeout time.Duration) (latency, service *hdrhistogram.Histogram, errors int64) {
	free := make([]time.Duration, hands)
	latency, service = histogram.New(), histogram.New()
	for n := range arrivals {
		intended := time.Duration(n) * gap
		first := 0
		for h := range free {
			if free[h] < free[first] {
				first = h
			}
		}
		begins := max(intended, free[first])
		ends := min(begins+takes, max(begins, intended+timeout))
		free[first] = ends
		if begins+takes > intended+timeout {
			errors++
			continue
		}
		histogram.Record(latency, ends-intended)
		histogram.Record(service, ends-begins)
	}
	return latency, service, errors
}

// A server that is too slow shows in full: every arrival that was meant to be is
// counted, as done with the whole time since it was meant to start, or as an error.
// Promise: L2
func TestSlowServersCannotHide(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		hands := rapid.IntRange(1, 4).Draw(r, "hands")
		rate := rapid.SampledFrom([]float64{1, 10, 50}).Draw(r, "rate")
		takes := time.Duration(rapid.Int64Range(1, 3000).Draw(r, "takes"))*time.Millisecond + 300*time.Microsecond
		timeout := time.Duration(rapid.Int64Range(100, 5000).Draw(r, "timeout")) * time.Millisecond
		seconds := rapid.IntRange(1, 8).Draw(r, "seconds")
		pace := Pace{Mode: open, Arrivals: even, Rate: rate, Users: hands, Interval: Duration(3 * time.Second), Duration: Duration(seconds) * Duration(time.Second), Timeout: Duration(timeout)}
		if err := pace.settle(); err != nil {
			t.Fatal(err)
		}
		arrivals := int(rate) * seconds
		latency, service, errors := expect(arrivals, hands, time.Duration(float64(time.Second)/rate), takes, timeout)
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			got := run(t, &paced{pace, func(int, *rand.Rand) worker { return slow{takes} }}).Ops["x"]
			if got.Done+got.Errors != int64(arrivals) || got.Errors != errors {
				t.Fatalf("of %d arrivals %d done and %d errors, instead of %d errors", arrivals, got.Done, got.Errors, errors)
			}
			if got.Done > 0 && (!got.Latency.Equals(latency) || !got.Service.Equals(service)) {
				t.Fatalf("latency %d to %d µs instead of %d to %d", got.Latency.Min(), got.Latency.Max(), latency.Min(), latency.Max())
			}
			if took, most := time.Since(start), time.Duration(seconds)*time.Second+timeout; took > most {
				t.Fatalf("it ended after %v: %v at most was promised", took, most)
			}
		})
	})
}

func TestPoissonArrivalsKeepTheirRateAndSeed(t *testing.T) {
	count := func(seed uint64) int64 {
		var done int64
		synctest.Test(t, func(t *testing.T) {
			pace := Pace{Mode: open, Rate: 100, Interval: Duration(time.Hour), Duration: Duration(100 * time.Second), Seed: seed}
			if err := pace.settle(); err != nil {
				t.Fatal(err)
			}
			done = run(t, &paced{pace, func(int, *rand.Rand) worker { return slow{time.Millisecond} }}).Ops["x"].Done
		})
		return done
	}
	one, again, other := count(1), count(1), count(2)
	if one != again || one == other {
		t.Errorf("%d and %d arrivals of one seed, %d of another", one, again, other)
	}
	if one < 9500 || one > 10500 { // five standard deviations of 10,000
		t.Errorf("%d arrivals instead of about 10,000", one)
	}
}

func TestUsersOfClosedLoopsThink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := Pace{Users: 10, Think: Duration(time.Second), Interval: Duration(time.Hour), Duration: Duration(1000 * time.Second)}
		if err := pace.settle(); err != nil {
			t.Fatal(err)
		}
		got := run(t, &paced{pace, func(int, *rand.Rand) worker { return slow{time.Second} }}).Ops["x"]
		// One piece in two seconds for each user.
		if got.Done < 4800 || got.Done > 5200 || got.Errors != 0 || got.Service != nil {
			t.Errorf("%d done, %d errors, service %v", got.Done, got.Errors, got.Service)
		}
		if got.Latency.Max() > 1_010_000 {
			t.Errorf("thinking counts as waiting: %d to %d µs", got.Latency.Min(), got.Latency.Max())
		}
	})
}

// broken fails at once.
type broken struct{ tries *atomic.Int64 }

func (broken) close() {}

func (b broken) do(_ context.Context, intended time.Time, m *meter) error {
	b.tries.Add(1)
	err := errors.New("refused")
	m.failed("x", intended, err)
	return err
}

func TestDeadServersMakeNoBusyLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int64
		pace := Pace{Users: 1, Duration: Duration(9950 * time.Millisecond)}
		if err := pace.settle(); err != nil {
			t.Fatal(err)
		}
		got := run(t, &paced{pace, func(int, *rand.Rand) worker { return broken{&tries} }}).Ops["x"]
		if tries.Load() != 100 || got.Errors != 100 || got.Done != 0 || got.Latency != nil || got.Example != "refused" {
			t.Errorf("%d tries: %+v", tries.Load(), got)
		}
	})
}

func TestStoppedLoadsEndAndCountWhatWasDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := Pace{Mode: open, Arrivals: even, Rate: 10, Users: 2, Duration: Duration(time.Hour), Timeout: Duration(time.Minute)}
		if err := pace.settle(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+50*time.Millisecond)
		defer cancel()
		start := time.Now()
		var total Total
		load := &paced{pace, func(int, *rand.Rand) worker { return slow{time.Hour} }}
		if err := load.Run(ctx, func(i Interval) { _ = total.Add(i) }); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 16*time.Second {
			t.Errorf("it went on until %v after its start", took)
		}
		if got := total.Ops["x"]; got.Done != 0 || got.Errors != 101 {
			t.Errorf("of 101 arrivals %d done, %d errors", got.Done, got.Errors)
		}
	})
}

func TestSlowListenersGetLongIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := Pace{Mode: open, Arrivals: even, Rate: 10, Duration: Duration(10 * time.Second)}
		if err := pace.settle(); err != nil {
			t.Fatal(err)
		}
		var all []Interval
		load := &paced{pace, func(int, *rand.Rand) worker { return slow{time.Millisecond} }}
		err := load.Run(t.Context(), func(i Interval) {
			all = append(all, i)
			until(t.Context(), time.Now().Add(4*time.Second))
		})
		if err != nil {
			t.Fatal(err)
		}
		var total Total
		for n, i := range all {
			if err := total.Add(i); err != nil {
				t.Fatal(err)
			}
			if n > 0 && !i.Start.Equal(all[n-1].Start.Add(all[n-1].Length)) {
				t.Errorf("interval %d does not begin where the one before ended", n)
			}
		}
		if done := total.Ops["x"].Done; done != 100 || total.Offered != 100 || len(all) != 4 { // to 1, 5 and 9 seconds, and the rest
			t.Errorf("%d done of %d in %d intervals", done, total.Offered, len(all))
		}
	})
}
