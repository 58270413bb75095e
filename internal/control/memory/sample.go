package memory

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/decision/arbiter"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
)

// swapForgotten is how long the estimate of a guest's used swap takes to halve while the guest reads nothing back: pages
// that programs freed while they were in swap are never read, and no figure tells of them.
const swapForgotten = 10 * time.Minute

// sampleOf makes the arbiter's sample of what a guest said, and of how its counters rose since it spoke before. Nil: it
// said too little. inBalloon is what the balloon holds, in MiB, if the guest counts that as its own memory, in use.
func sampleOf(before, now *machine.Balloon, last *arbiter.Sample, inBalloon float64) *arbiter.Sample {
	available, ok := statistics.Figure(now, machine.AvailableMemory)
	total, is := statistics.Figure(now, machine.TotalMemory)
	if !ok || !is {
		return nil
	}
	s := &arbiter.Sample{At: now.Updated, Period: period, Actual: max(mib(total)-inBalloon, 0), Available: mib(min(available, total))}
	if cache, ok := statistics.Figure(now, machine.DiskCaches); ok {
		s.Cache = mib(cache)
	}
	if before.Updated.IsZero() {
		return s
	}
	seconds := now.Updated.Sub(before.Updated).Seconds()
	in, out := mib(rise(before, now, machine.SwappedIn)), mib(rise(before, now, machine.SwappedOut))
	s.SwapIn = in / seconds
	s.MajorFaults = float64(rise(before, now, machine.MajorFaults)) / seconds
	if last != nil {
		s.Swapped = max(last.Swapped+out-in, 0)
		if in == 0 {
			s.Swapped *= 1 - min(seconds/swapForgotten.Seconds(), 1)/2
		}
	}
	return s
}

// rise is how much a counter has grown; a guest that counts backwards has none.
func rise(before, now *machine.Balloon, f machine.BalloonFigure) uint64 {
	was, known := statistics.Figure(before, f)
	is, ok := statistics.Figure(now, f)
	if !known || !ok || is < was {
		return 0
	}
	return is - was
}
