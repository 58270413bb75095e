package arbiter

import (
	"fmt"
	"testing"
	"time"
)

var epoch = time.Unix(1000, 0)

// speaking is a guest of 4,096 MiB with a floor of 512. It holds the memory that it uses, and reports each second.
func speaking(id string, uses, has float64, now time.Time) Guest {
	return Guest{
		ID: id, Started: epoch, Max: 4096, Floor: 512, Shares: 1, Target: has, Actual: has, Resident: uses,
		Sample: &Sample{At: now, Period: time.Second, Actual: has, Available: max(has-uses, 0)},
	}
}

// after runs an arbiter for a number of seconds and moves each balloon at once. The list gives the guests of a second,
// from their present targets. It returns the last decisions.
func after(a *Arbiter, h Host, seconds int, list func(second int, has map[string]float64) []Guest) map[string]Decision {
	has, last := map[string]float64{}, map[string]Decision{}
	for s := range seconds {
		for _, d := range a.Decide(epoch.Add(time.Duration(s)*time.Second), h, list(s, has)) {
			has[d.ID], last[d.ID] = d.Target, d
		}
	}
	return last
}

func TestDecide_EverythingFits_NothingMoves(t *testing.T) {
	a := New(Tuned)
	last := after(a, Host{Memory: 32768}, 60, func(s int, _ map[string]float64) []Guest {
		now := epoch.Add(time.Duration(s) * time.Second)
		return []Guest{speaking("a", 900, 2048, now), speaking("b", 300, 1024, now)}
	})
	if last["a"].Target != 2048 || last["b"].Target != 1024 || last["a"].Reason != Held {
		t.Errorf("targets are %+v", last)
	}
}

func TestDecide_Scarce_IdleGuestGives(t *testing.T) {
	a := New(Tuned)
	last := after(a, Host{Memory: 5000}, 60, func(s int, has map[string]float64) []Guest {
		now := epoch.Add(time.Duration(s) * time.Second)
		busy, idle := speaking("busy", 3000, max(has["busy"], 3072), now), speaking("idle", 600, max(has["idle"], 600), now)
		if has["idle"] == 0 {
			idle = speaking("idle", 600, 4096, now)
		}
		idle.Resident = idle.Actual // it has filled its memory with cache once
		return []Guest{busy, idle}
	})
	if last["busy"].Target < 3000 || last["idle"].Target > 2000 || last["idle"].Target < 600 {
		t.Errorf("the busy guest gets %.0f MiB, the idle one %.0f", last["busy"].Target, last["idle"].Target)
	}
}

// A guest that lies, or flaps, gets no more than its part by shares while others need it.
func TestDecide_Liar_CostsOthersNothing(t *testing.T) {
	run := func(third func(g *Guest, second int)) map[string]Decision {
		return after(New(Tuned), Host{Memory: 6000}, 120, func(s int, has map[string]float64) []Guest {
			now := epoch.Add(time.Duration(s) * time.Second)
			g := speaking("third", 600, max(has["third"], 1024), now)
			third(&g, s)
			return []Guest{speaking("a", 2000, max(has["a"], 2048), now), speaking("b", 1800, max(has["b"], 2048), now), g}
		})
	}
	honest := run(func(*Guest, int) {})
	for name, lie := range map[string]func(g *Guest, second int){
		"uses all": func(g *Guest, _ int) { g.Sample.Actual, g.Sample.Available = 4096, 0 },
		"suffers":  func(g *Guest, _ int) { g.Sample.MajorFaults, g.Sample.SwapIn, g.Sample.Scans = 1e6, 1e6, 1e6 },
		"swaps":    func(g *Guest, _ int) { g.Sample.Swapped = 1e6 },
		"flaps":    func(g *Guest, s int) { g.Sample.Available = float64(s%2) * g.Sample.Actual },
		"does it all": func(g *Guest, _ int) {
			*g.Sample = Sample{At: g.Sample.At, Period: time.Second, Actual: 1e9, Swapped: 1e9, MajorFaults: 1e9, SwapIn: 1e9, Scans: 1e9}
		},
		"says nothing": func(g *Guest, _ int) { g.Sample = nil },
	} {
		lying := run(lie)
		for _, id := range []string{"a", "b"} {
			if need := map[string]float64{"a": 2000, "b": 1800}[id]; lying[id].Target < min(need+leastMove, honest[id].Target) {
				t.Errorf("beside a guest that %s guest %s gets %.0f MiB, beside an honest one %.0f", name, id, lying[id].Target, honest[id].Target)
			}
		}
	}
}

func TestDecide_BalloonDoesNotFollow(t *testing.T) {
	a := New(Tuned)
	last := after(a, Host{Memory: 2600}, 60, func(s int, has map[string]float64) []Guest {
		now := epoch.Add(time.Duration(s) * time.Second)
		deaf := speaking("deaf", 1500, 2048, now)
		deaf.Resident = 2048
		if target := has["deaf"]; target > 0 {
			deaf.Target = target // and it stays at 2,048
		}
		other := speaking("other", 700, max(has["other"], 700), now)
		return []Guest{deaf, other}
	})
	if d := last["deaf"]; d.Reason != Stuck || d.Target != 2048 {
		t.Errorf("a guest that gives nothing back is %+v", d)
	}
	if sum := last["other"].Target + 2048; sum > 2600 {
		t.Errorf("beside it %.0f MiB of 2600 are given out", sum)
	}
}

// The learned values of a run do not outlive it.
func TestDecide_GuestStartsAgain(t *testing.T) {
	a := New(Tuned)
	h := Host{Memory: 32768}
	after(a, h, 30, func(s int, _ map[string]float64) []Guest {
		return []Guest{speaking("a", float64(500+s*50), 3000, epoch.Add(time.Duration(s)*time.Second))}
	})
	g := speaking("a", 400, 1024, epoch.Add(time.Minute))
	g.Started = epoch.Add(50 * time.Second)
	if d := a.Decide(epoch.Add(time.Minute), h, []Guest{g})[0]; d.Margin > .021*g.Max {
		t.Errorf("after its start the guest has a margin of %.0f MiB", d.Margin)
	}
	g.Apart, g.Sample = "it is paused", nil
	if d := a.Decide(epoch.Add(61*time.Second), h, []Guest{g})[0]; d.Reason != Apart || d.Target != g.Target {
		t.Errorf("a guest that must be left alone is %+v", d)
	}
}

// BenchmarkDecide decides for a thousand guests with claims that do not fit.
func BenchmarkDecide(b *testing.B) {
	a, guests := New(Tuned), make([]Guest, 1000)
	for s := 0; b.Loop(); s++ {
		now := epoch.Add(time.Duration(s) * time.Second)
		for i := range guests {
			guests[i] = speaking(fmt.Sprint(i), float64(800+i), 2048, now)
			guests[i].Resident = 2048
		}
		a.Decide(now, Host{Memory: 1.6e6}, guests)
	}
}
