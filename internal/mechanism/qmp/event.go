package qmp

import (
	"encoding/json"
	"slices"
	"sync"
	"time"
)

// Bounds of the events that wait for the consumer.
const (
	maxQueuedEvents = 1024
	maxQueuedBytes  = 16 << 20
)

// Event is a message that QEMU sent without a command.
type Event struct {
	Name string
	Data json.RawMessage // nil when the event carries none
	Time time.Time       // of the host's clock; zero if QEMU could not read it

	// Number counts the events that QEMU has sent in this session, from 1; see
	// Session.NewestEvent.
	Number uint64

	// Resync says that events before this one were lost, because the consumer
	// fell behind by more than the queue holds: query the whole state again.
	Resync bool
}

// telemetry are the events that carry only a present value. Of those in the queue, only the newest of each source is
// delivered.
var telemetry = map[string]bool{
	"BALLOON_CHANGE":            true,
	"BLOCK_WRITE_THRESHOLD":     true,
	"MEMORY_DEVICE_SIZE_CHANGE": true,
	"NIC_RX_FILTER_CHANGED":     true,
	"RTC_CHANGE":                true,
	"VSERPORT_CHANGE":           true,
}

// source names the device of a telemetry event.
func source(e Event) string {
	var about struct {
		ID       string `json:"id"`
		NodeName string `json:"node-name"`
		Path     string `json:"path"`
		QOMPath  string `json:"qom-path"`
	}
	// A shape that is not understood has no device: such events coalesce by name.
	_ = json.Unmarshal(e.Data, &about)
	return e.Name + "\x00" + about.ID + "\x00" + about.NodeName + "\x00" + about.Path + "\x00" + about.QOMPath
}

// eventQueue buffers events between the reader, which never waits, and the consumer.
//
// At the bound, telemetry is dropped first. If life-cycle events alone fill the queue, all of them are dropped, and
// the newest event gets the Resync mark.
type eventQueue struct {
	mu      sync.Mutex
	waiting []queued
	bytes   int
	sent    uint64        // the number of the newest event
	lost    bool          // events were dropped since the last mark
	ended   bool          // no event will follow
	wake    chan struct{} // one token: something changed
}

type queued struct {
	Event
	source string // "" for a life-cycle event
}

// size is the size of an event in bytes.
func (e queued) size() int { return len(e.Name) + len(e.Data) + len(e.source) }

func newEventQueue() *eventQueue { return &eventQueue{wake: make(chan struct{}, 1)} }

// put adds an event behind all others; it never waits.
func (q *eventQueue) put(e Event) {
	entry := queued{Event: e}
	if telemetry[e.Name] {
		entry.source = source(e)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sent++
	entry.Number = q.sent
	if entry.source != "" {
		q.drop(func(old queued) bool { return old.source == entry.source })
	}
	if !q.fits(entry) && entry.source == "" {
		q.lost = q.drop(func(old queued) bool { return old.source != "" }) || q.lost
		if !q.fits(entry) {
			q.lost = q.drop(func(queued) bool { return true }) || q.lost
		}
	}
	if !q.fits(entry) {
		q.lost = true
		return
	}
	entry.Resync = q.lost
	q.lost = false
	q.waiting = append(q.waiting, entry)
	q.bytes += entry.size()
	q.signal()
}

func (q *eventQueue) fits(e queued) bool {
	return len(q.waiting) < maxQueuedEvents && q.bytes+e.size() <= maxQueuedBytes
}

// drop removes the matching events and reports whether there were any. A mark
// on a removed event is kept for the next one.
func (q *eventQueue) drop(match func(queued) bool) bool {
	before := len(q.waiting)
	q.waiting = slices.DeleteFunc(q.waiting, func(e queued) bool {
		if !match(e) {
			return false
		}
		q.bytes -= e.size()
		q.lost = q.lost || e.Resync
		return true
	})
	return len(q.waiting) < before
}

// take removes the oldest event. more is false once the queue has ended and
// is empty.
func (q *eventQueue) take() (e Event, ok, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return Event{}, false, !q.ended
	}
	e = q.waiting[0].Event
	q.bytes -= q.waiting[0].size()
	q.waiting = slices.Delete(q.waiting, 0, 1)
	return e, true, true
}

func (q *eventQueue) newest() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.sent
}

func (q *eventQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.signal()
}

func (q *eventQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// deliver hands events to out, in order and at a pace, until the queue ends or the
// owner stops it, then closes out.
func (q *eventQueue) deliver(out chan<- Event, stop <-chan struct{}) {
	defer close(out)
	passed := newPace(passBurst, passRate)
	for {
		e, ok, more := q.take()
		switch {
		case ok:
			select {
			case out <- e:
				passed.wait(1, stop)
			case <-stop:
				return
			}
		case !more:
			return
		default:
			select {
			case <-q.wake:
			case <-stop:
				return
			}
		}
	}
}
