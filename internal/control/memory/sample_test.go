package memory

import (
	"maps"
	"math"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/decision/arbiter"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

// said is a balloon's statistics: figures in bytes or counts, at a second.
func said(second int64, figures map[machine.BalloonFigure]uint64) *machine.Balloon {
	b := &machine.Balloon{Updated: time.Unix(second, 0)}
	for f, value := range figures {
		b.Figures[f] = value
		b.Known |= 1 << f
	}
	return b
}

// memoryOf are the figures of a guest with 1,000 MiB, where 400 are available.
func memoryOf(more map[machine.BalloonFigure]uint64) map[machine.BalloonFigure]uint64 {
	figures := map[machine.BalloonFigure]uint64{machine.TotalMemory: 1000 << 20, machine.AvailableMemory: 400 << 20}
	maps.Copy(figures, more)
	return figures
}

func TestSample_RatesAndSwap(t *testing.T) {
	first := said(10, memoryOf(map[machine.BalloonFigure]uint64{machine.SwappedOut: 5 << 30, machine.SwappedIn: 1 << 20, machine.MajorFaults: 1000}))
	s := sampleOf(&machine.Balloon{}, first, nil, 0)
	if s.Actual != 1000 || s.Available != 400 || s.SwapIn != 0 || s.Swapped != 0 || s.MajorFaults != 0 {
		t.Errorf("the first sample is %+v: counters since the guest's boot say nothing of now", *s)
	}
	next := said(14, memoryOf(map[machine.BalloonFigure]uint64{machine.SwappedOut: 5<<30 + 64<<20, machine.SwappedIn: 9 << 20, machine.MajorFaults: 1200}))
	s = sampleOf(first, next, s, 0)
	if s.SwapIn != 2 || s.MajorFaults != 50 || s.Swapped != 56 {
		t.Errorf("after 64 MiB out and 8 in within 4 s the sample is %+v", *s)
	}
	s = sampleOf(next, said(14+600, memoryOf(map[machine.BalloonFigure]uint64{machine.SwappedOut: 5<<30 + 64<<20, machine.SwappedIn: 9 << 20})), s, 0)
	if math.Abs(s.Swapped-28) > .01 {
		t.Errorf("ten minutes later %.1f MiB count as swapped, not half of 56", s.Swapped)
	}
}

func TestSample_HostileFigures(t *testing.T) {
	for name, figures := range map[string]map[machine.BalloonFigure]uint64{
		"says nothing":            {},
		"says no total":           {machine.AvailableMemory: 1},
		"says no available":       {machine.TotalMemory: 1},
		"counts backwards":        memoryOf(map[machine.BalloonFigure]uint64{machine.SwappedIn: 1}),
		"has more than all free":  {machine.TotalMemory: 1 << 20, machine.AvailableMemory: math.MaxUint64},
		"counts to the last byte": memoryOf(map[machine.BalloonFigure]uint64{machine.MajorFaults: math.MaxUint64, machine.SwappedOut: math.MaxUint64}),
	} {
		before := said(10, memoryOf(map[machine.BalloonFigure]uint64{machine.SwappedIn: 1 << 30}))
		s := sampleOf(before, said(12, figures), &arbiter.Sample{}, 100)
		if s == nil {
			continue
		}
		for _, n := range []float64{s.Actual, s.Available, s.Cache, s.Swapped, s.MajorFaults, s.SwapIn} {
			if n < 0 || math.IsNaN(n) || math.IsInf(n, 0) {
				t.Errorf("a guest that %s gives %+v", name, *s)
			}
		}
	}
}
