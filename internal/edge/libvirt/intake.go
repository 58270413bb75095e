package libvirt

import "sync"

// intake counts the calls that a client has in flight: from the reading of a call
// until its answer was sent or dropped. Only the read loop takes, so at most one
// waiter looks at freed.
type intake struct {
	maxCalls, maxBytes int
	freed              chan struct{} // holds a token when something was given back

	mu           sync.Mutex
	calls, bytes int
}

// newIntake makes an intake with its bounds: calls at a time, and bytes of all those calls.
func newIntake(maxCalls, maxBytes int) *intake {
	return &intake{maxCalls: maxCalls, maxBytes: maxBytes, freed: make(chan struct{}, 1)}
}

// take counts one more call with a payload of size bytes, if it fits. One
// alone always fits.
func (in *intake) take(size int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.calls > 0 && (in.calls >= in.maxCalls || in.bytes+size > in.maxBytes) {
		return false
	}
	in.calls++
	in.bytes += size
	return true
}

// give reverses one take.
func (in *intake) give(size int) {
	in.mu.Lock()
	in.calls--
	in.bytes -= size
	in.mu.Unlock()
	mark(in.freed)
}
