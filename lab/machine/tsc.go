package machine

import "time"

// stretch is how long the counter is watched: a reading is known to some
// hundred nanoseconds, so that the rate is known to a few millionths.
const stretch = 100 * time.Millisecond

// counter reads the processor's time stamp counter, which on every processor
// that can run guests goes at one rate and is the same on all cores.
func counter() uint64

// TSC is the rate of the processor's time stamp counter in kHz, by the host's
// clock. It takes a tenth of a second. The kernel knows it, too, and tells it in
// its first messages only, which are long gone on a host that has been up.
func TSC() int {
	from, since := reading()
	<-time.After(stretch)
	to, until := reading()
	return int(float64(to-from) * float64(time.Millisecond) / float64(until.Sub(since)))
}

// reading gives the counter at a moment: of a few tries the one that was least
// disturbed.
func reading() (count uint64, at time.Time) {
	best := time.Hour
	for range 10 {
		before := time.Now()
		c := counter()
		if took := time.Since(before); took < best {
			best, count, at = took, c, before.Add(took/2)
		}
	}
	return count, at
}
