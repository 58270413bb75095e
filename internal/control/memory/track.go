package memory

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/decision/arbiter"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// track is what the manager keeps of one run of a guest.
type track struct {
	guest *guest.Guest
	id    int // the guest's ID in this run
	since time.Time
	asked time.Time
	held  float64 // resident memory at that time, in MiB
	own   float64 // memory of QEMU itself, in MiB
	mode  Mode    // of the guest's own settings; "": as the host's

	mu      sync.Mutex
	busy    bool // a question or a move is under way
	target  float64
	moved   time.Time
	failure error
	sample  *arbiter.Sample
	before  machine.Balloon
}

const (
	// period is how often a guest's driver makes statistics, and how often they are read while memory is scarce or the
	// guest's resident memory changes. calmPeriod is how often they are read otherwise: a thousand calm guests then cost
	// a hundred questions a second.
	period, calmPeriod = 2 * time.Second, 10 * time.Second
	// change is the change of resident memory, as a fraction of the guest's maximum, that is worth a question.
	change = .01
	// patience bounds a question or a move. A guest that takes longer is asked again later.
	patience = 10 * time.Second
)

// latest returns the guest's newest sample and its target. Before the first move its present size is the target.
func (t *track) latest(actual float64) (*arbiter.Sample, float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.target == 0 {
		return t.sample, actual
	}
	return t.sample, t.target
}

// begin reserves the track for one question or move; false: one is under way.
func (t *track) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy {
		return false
	}
	t.busy = true
	return true
}

// ask asks the guest's QEMU for its statistics, beside the manager's loop, if they are due.
func (t *track) ask(ctx context.Context, work *sync.WaitGroup, now time.Time, g *arbiter.Guest, calm bool) {
	due := period
	if calm && g.Sample != nil && math.Abs(g.Resident-t.held) < change*g.Max {
		due = calmPeriod
	}
	if now.Sub(t.asked) < due || !t.begin() {
		return
	}
	t.asked, t.held = now, g.Resident
	work.Go(func() {
		ctx, stop := context.WithTimeout(ctx, patience)
		defer stop()
		b, err := statistics.GuestMemory(ctx, t.guest, period)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.busy = false
		if err == nil {
			t.take(b)
		}
	})
}

// take makes a sample of what the guest said, if it has said something new. The caller holds mu.
func (t *track) take(b *machine.Balloon) {
	if !b.Updated.After(t.before.Updated) {
		return
	}
	if s := sampleOf(&t.before, b, t.sample, inBalloon(t.guest.View())); s != nil {
		t.sample = s
	}
	t.before = *b
}

// inBalloon returns the size of a guest's balloon, in MiB, if the guest counts it as its own memory. Linux does so only
// with automatic deflation (virtio_balloon.c, VIRTIO_BALLOON_F_DEFLATE_ON_OOM).
func inBalloon(v *guest.View) float64 {
	d := v.Active
	if d == nil || d.Devices.Balloon == nil || d.Devices.Balloon.AutoDeflate != device.On {
		return 0
	}
	return mib(d.Memory - min(d.CurrentMemory, d.Memory))
}

// follow carries out a decision in mode act, beside the manager's loop, and returns the guest's line of the picture.
func (t *track) follow(ctx context.Context, m *Manager, now time.Time, g *arbiter.Guest, d arbiter.Decision) Line {
	v := t.guest.View()
	line := Line{
		Name: v.Name, UUID: v.UUID, Mode: m.config.Mode, Max: g.Max, Asked: mib(v.AskedMemory), Floor: g.Floor, Has: g.Actual,
		Resident: g.Resident, Decision: d, Apart: g.Apart,
	}
	if t.mode == Advise {
		line.Mode = Advise
	}
	if g.Sample != nil {
		line.Sampled = g.Sample.At
	}
	if size := bytesOf(d.Target); line.Mode == Act && d.Reason != arbiter.Held && g.Apart == "" && size != bytesOf(g.Target) && t.begin() {
		t.move(ctx, m, now, size, g, d)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	line.Moved, line.Failure = t.moved, t.failure
	return line
}

// move moves the balloon, and logs the decision with its parts.
func (t *track) move(ctx context.Context, m *Manager, now time.Time, size uint64, g *arbiter.Guest, d arbiter.Decision) {
	m.work.Go(func() {
		ctx, stop := context.WithTimeout(ctx, patience)
		defer stop()
		err := hotplug.LendMemory(ctx, t.guest, scope.Daemon("memory is shared among the guests"), size)
		m.config.Log.Info("balloon moved", "guest", t.guest.Name(), "uuid", d.ID, "from", int(g.Target), "to", size>>20, "unit", "MiB",
			"reason", string(d.Reason), "need", int(d.Need), "margin", int(d.Margin), "cache", int(d.Cache), "error", err)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.busy, t.failure = false, err
		if err == nil {
			t.target, t.moved = mib(size), now
		}
	})
}
