package workload

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// stalling is a server that answers nothing in a stretch of time.
type stalling struct{ from, to time.Time }

func (s stalling) close() {}

func (s stalling) do(ctx context.Context, intended time.Time, m *meter) error {
	started := time.Now()
	var err error
	if !started.Before(s.from) && started.Before(s.to) && !until(ctx, s.to) {
		err = context.Cause(ctx)
	}
	m.note("x", intended, started, 0, err)
	return err
}

// byIntent sums intervals up by the interval in which work was meant to begin.
func byIntent(t *testing.T, all []Interval) map[time.Time]Total {
	t.Helper()
	sums := map[time.Time]Total{}
	add := func(i Interval) {
		sum := sums[i.Start]
		if err := sum.Add(i); err != nil {
			t.Fatal(err)
		}
		sums[i.Start] = sum
	}
	for _, i := range all {
		late := i.Late
		i.Late = nil
		add(i)
		for _, l := range late {
			add(l)
		}
	}
	return sums
}

// A server stalls from the fourth interval to the ninth. What it works off then counts
// for the intervals of the stall, in which as much was offered as ever.
// Promise: L54
func TestArrivals_BacklogBelongsToTheTimeThatMadeIt(t *testing.T) {
	const length = 1030 * time.Millisecond // no arrival comes as an interval ends
	synctest.Test(t, func(t *testing.T) {
		pace := Pace{Mode: open, Arrivals: even, Rate: 10, Users: 2, Interval: Duration(length), Duration: Duration(10*length - 50*time.Millisecond)}
		if err := pace.settle(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		server := stalling{start.Add(3 * length), start.Add(8*length + time.Millisecond)}
		var all []Interval
		load := &paced{pace, func(int, *rand.Rand) worker { return server }}
		if err := load.Run(t.Context(), func(i Interval) { all = append(all, i) }); err != nil {
			t.Fatal(err)
		}
		sums := byIntent(t, all)
		for at, sum := range sums {
			if sum.Served != sum.Offered || sum.Ops["x"].Done != sum.Offered {
				t.Errorf("from %v: %+v, %d done", at.Sub(start), sum.Arrivals, sum.Ops["x"].Done)
			}
		}
		for n, i := range all[:10] {
			var ended Total
			if err := ended.Add(i); err != nil {
				t.Fatal(err)
			}
			if i.Offered < 10 || i.Offered > 11 {
				t.Errorf("%d were offered in interval %d", i.Offered, n)
			}
			done, stalled := ended.Ops["x"].Done, n >= 3 && n < 8
			if stalled && done != 0 || !stalled && n != 8 && done != i.Offered || n == 8 && done < 60 {
				t.Errorf("%d ended in interval %d", done, n)
			}
		}
		// The slowest was meant to begin as the stall began.
		if slow := sums[all[3].Start].Ops["x"].Latency.Max(); slow < 4_900_000 {
			t.Errorf("the longest that an arrival of the stall took is %d µs", slow)
		}
	})
}

// Whatever a server does and whenever a load is stopped: every arrival that was
// offered is served or failed.
// Promise: L54
func TestArrivals_EachIsServedOrFailed(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		pace := Pace{
			Mode: open, Rate: rapid.SampledFrom([]float64{3, 40}).Draw(r, "rate"), Users: rapid.IntRange(1, 3).Draw(r, "users"),
			Duration: Duration(8 * time.Second), Timeout: Duration(rapid.Int64Range(100, 4000).Draw(r, "timeout")) * Duration(time.Millisecond), Seed: rapid.Uint64().Draw(r, "seed"),
		}
		takes := time.Duration(rapid.Int64Range(1, 2000).Draw(r, "takes")) * time.Millisecond
		stop := time.Duration(rapid.Int64Range(1, 12000).Draw(r, "stop")) * time.Millisecond
		if err := pace.settle(); err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), stop)
			defer cancel()
			var all []Interval
			load := &paced{pace, func(int, *rand.Rand) worker { return slow{takes} }}
			if err := load.Run(ctx, func(i Interval) { all = append(all, i) }); err != nil {
				t.Fatal(err)
			}
			for at, sum := range byIntent(t, all) {
				x := sum.Ops["x"]
				if sum.Offered != sum.Served+sum.Failed || sum.Served != x.Done || sum.Failed != x.Errors {
					t.Fatalf("from %v: %+v, %d done, %d errors", at, sum.Arrivals, x.Done, x.Errors)
				}
			}
		})
	})
}

func TestArrivals_ComeBackFromTheirTexts(t *testing.T) {
	start := time.Now().UTC().Round(0)
	sent := Interval{
		Start: start, Length: time.Second, Ops: map[string]Count{"a": counted(time.Millisecond)}, Arrivals: Arrivals{Offered: 9, Served: 1},
		Late: []Interval{{Start: start.Add(-time.Second), Length: time.Second, Ops: map[string]Count{"a": counted(time.Second)}, Arrivals: Arrivals{Served: 1}}},
	}
	data, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	var got Interval
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	var sum Total
	if err := sum.Add(got); err != nil || sum.Arrivals != (Arrivals{Offered: 9, Served: 2}) || sum.Ops["a"].Done != 2 {
		t.Errorf("%s: %v, %+v", data, err, sum)
	}
	for what, spoil := range map[string]func(*Interval){
		"negative":          func(i *Interval) { i.Offered = -1 },
		"late of the late":  func(i *Interval) { i.Late[0].Late = []Interval{{}} },
		"later than itself": func(i *Interval) { i.Late[0].Start = i.Start },
		"offered too late":  func(i *Interval) { i.Late[0].Offered = 1 },
		"too many":          func(i *Interval) { i.Late = make([]Interval, MaxLate+1) },
	} {
		bad := sent
		bad.Late = append([]Interval{}, sent.Late...)
		if spoil(&bad); bad.Check() == nil {
			t.Errorf("an interval that is %s is taken", what)
		}
	}
}
