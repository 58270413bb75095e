package qmp

import "time"

// What a QEMU says is taken in and passed on at a pace, so that one that was taken
// over and talks without end costs a part of a processor, and takes no other guest's
// place in the log of events. Honest ones never come near.
const (
	// readBurst is how much is read at once, and readRate what is read of it in a
	// second after that, both in KiB; each line counts as one at least.
	readBurst = 2 * MaxLine >> 10
	readRate  = 16 << 10
	// passBurst events are passed on at once, and passRate in a second after that.
	passBurst = 8192
	passRate  = 1024
)

// pace says how long to rest for what has gone.
type pace struct {
	each  time.Duration // that one unit takes in the long run
	burst time.Duration // worth of units that go at once
	paid  time.Time     // when all that has gone is paid for
}

func newPace(burst, rate int) pace {
	each := time.Second / time.Duration(rate)
	return pace{each: each, burst: time.Duration(burst) * each}
}

// rest waits for what so many units more have cost, or for stop.
func (p *pace) rest(units int, stop <-chan struct{}) {
	now := time.Now()
	if p.paid.Before(now) {
		p.paid = now
	}
	p.paid = p.paid.Add(time.Duration(units) * p.each)
	owed := p.paid.Sub(now) - p.burst
	if owed <= 0 {
		return
	}
	timer := time.NewTimer(owed)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-stop:
	}
}
