package rpc

import (
	"sync"
)

// Intake counts the calls that a client has in flight: from the reading of a call
// until its answer was sent or dropped. Only the read loop acquires, so at most one
// goroutine waits for freed.
type Intake struct {
	maxCalls, maxBytes int
	freed              chan struct{} // holds a token after a release

	mu           sync.Mutex
	Calls, Bytes int
}

// NewIntake makes an intake with its bounds: calls at a time, and bytes of all those calls.
func NewIntake(maxCalls, maxBytes int) *Intake {
	return &Intake{maxCalls: maxCalls, maxBytes: maxBytes, freed: make(chan struct{}, 1)}
}

// Acquire counts one more call with a payload of size bytes, if it fits. A single
// call always fits.
func (in *Intake) Acquire(size int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.Calls > 0 && (in.Calls >= in.maxCalls || in.Bytes+size > in.maxBytes) {
		return false
	}
	in.Calls++
	in.Bytes += size
	return true
}

// Release ends the count of one call.
func (in *Intake) Release(size int) {
	in.mu.Lock()
	in.Calls--
	in.Bytes -= size
	in.mu.Unlock()
	signal(in.freed)
}
