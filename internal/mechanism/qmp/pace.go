package qmp

import "time"

// Messages of a QEMU are read and passed on at limited rates. A compromised QEMU
// that floods its monitor then costs part of one processor, and does not push the
// events of other guests out of the event log. No other QEMU comes near these rates.
const (
	// readBurst KiB are read at once, and readRate KiB a second
	// after that; each line counts as at least 1 KiB.
	readBurst = 2 * MaxLine >> 10
	readRate  = 16 << 10
	// passBurst events are passed on at once, and passRate a second after that.
	passBurst = 8192
	passRate  = 1024
)

// pace is a token bucket: it computes the pause after some units of work.
type pace struct {
	each  time.Duration // duration of one unit at the long-run rate
	burst time.Duration // duration of the units that may go at once
	paid  time.Time     // when all units so far are paid for
}

func newPace(burst, rate int) pace {
	each := time.Second / time.Duration(rate)
	return pace{each: each, burst: time.Duration(burst) * each}
}

// wait counts some more units and sleeps until the rate allows them, or until stop is closed.
func (p *pace) wait(units int, stop <-chan struct{}) {
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
