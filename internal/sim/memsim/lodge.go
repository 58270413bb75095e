package memsim

import (
	"strconv"
	"time"

	"github.com/lodge-kvm/lodge/internal/decision/arbiter"
)

// lodge is the daemon's own arbiter, compiled from the same package.
type lodge struct {
	rules   arbiter.Rules
	arbiter *arbiter.Arbiter
	w       *World
	guests  []arbiter.Guest
	samples []arbiter.Sample
	indexes []int
}

// Parameters implements Configurable.
func (l *lodge) Parameters() any { return &l.rules }

// Begin implements Policy.
func (l *lodge) Begin(w *World) {
	l.w, l.arbiter = w, arbiter.New(l.rules)
	l.samples = make([]arbiter.Sample, len(w.Guests()))
}

// Step implements Policy.
func (l *lodge) Step(second int) {
	l.guests, l.indexes = l.guests[:0], l.indexes[:0]
	for i := range l.w.Guests() {
		if v := &l.w.Guests()[i]; v.Running {
			l.guests, l.indexes = append(l.guests, l.guest(i, v)), append(l.indexes, i)
		}
	}
	h := l.w.Host()
	for k, d := range l.arbiter.Decide(at(second), arbiter.Host{Memory: h.RAM, Others: h.Reserved, Shared: h.KSMSaving}, l.guests) {
		if d.Target != l.guests[k].Target {
			l.w.SetTarget(l.indexes[k], d.Target)
		}
	}
}

// guest is what the arbiter sees of guest i.
func (l *lodge) guest(i int, v *GuestView) arbiter.Guest {
	g := arbiter.Guest{
		ID: strconv.Itoa(i), Started: at(v.BootedAt), Max: v.Max, Floor: v.Floor, Shares: v.Shares,
		Target: l.w.Target(i), Actual: v.Balloon, Resident: v.Resident, Swapped: v.HostSwapped,
	}
	if v.Valid {
		l.samples[i] = arbiter.Sample{
			At: at(v.SampledAt), Period: time.Duration(v.Period) * time.Second,
			Actual: v.Actual, Available: v.Available, Cache: v.Cache, Swapped: v.GuestSwap,
			MajorFaults: v.MajorFaults, SwapIn: v.SwapIn, Scans: v.Scans,
		}
		g.Sample = &l.samples[i]
	}
	return g
}

// at is a second of a run. No sample is from the zero time.
func at(second int) time.Time { return time.Unix(int64(second), 0) }
