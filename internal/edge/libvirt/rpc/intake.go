package rpc

import (
	"sync"
)

// Intake counts the calls that a client has in flight: from the reading of a call
// until its answer was sent or dropped. Only the read loop takes, so at most one
// waiter looks at freed.
type Intake struct {
	maxCalls, maxBytes int
	freed              chan struct{} // holds a token when something was given back

	mu           sync.Mutex
	Calls, Bytes int
}

// NewIntake makes an intake with its bounds: calls at a time, and bytes of all those calls.
func NewIntake(maxCalls, maxBytes int) *Intake {
	return &Intake{maxCalls: maxCalls, maxBytes: maxBytes, freed: make(chan struct{}, 1)}
}

// Take counts one more call with a payload of size bytes, if it fits. One
// alone always fits.
func (in *Intake) Take(size int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.Calls > 0 && (in.Calls >= in.maxCalls || in.Bytes+size > in.maxBytes) {
		return false
	}
	in.Calls++
	in.Bytes += size
	return true
}

// Give reverses one take.
func (in *Intake) Give(size int) {
	in.mu.Lock()
	in.Calls--
	in.Bytes -= size
	in.mu.Unlock()
	mark(in.freed)
}
