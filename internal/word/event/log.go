// Package event is the daemon's one ordered, numbered log of events.
//
// Writers append and never wait. Each reader follows from a cursor of its own.
// A reader that falls behind by more than the log holds is told how many events it
// lost and continues, so that a slow client delays nothing. This package holds
// the log and the payloads. It does not know the subscribers, nor wire layouts.
package event

import (
	"context"
	"sync"
	"time"
)

// Capacity is how many events the log holds. At a storm's thousand
// events a second a reader has several seconds before it loses one.
const Capacity = 8192

// Source names the object that an event is about.
type Source struct {
	Name, UUID string
	// ID of a running domain; -1 otherwise.
	ID int
}

// Event is one thing that happened. Events are immutable once appended.
type Event struct {
	// Seq counts from 1 without holes for the life of the daemon.
	Seq     uint64
	Time    time.Time
	Source  Source
	Payload Payload
}

// Log is the log. The zero value is not usable; make one with NewLog.
type Log struct {
	mu   sync.Mutex
	ring []Event
	next uint64        // sequence number of the next event
	grew chan struct{} // closed, and replaced, at each append that a reader waits for
	wait bool          // a reader holds grew
}

// NewLog makes an empty log.
func NewLog() *Log {
	return &Log{ring: make([]Event, 0, Capacity), next: 1, grew: make(chan struct{})}
}

// Append numbers an event and adds it, overwriting the oldest when full.
func (l *Log) Append(s Source, p Payload) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := Event{Seq: l.next, Time: time.Now(), Source: s, Payload: p}
	if len(l.ring) < Capacity {
		l.ring = append(l.ring, e)
	} else {
		l.ring[(l.next-1)%Capacity] = e
	}
	l.next++
	if l.wait {
		close(l.grew)
		l.grew, l.wait = make(chan struct{}), false
	}
}

// Reader follows the log from where it stands now. A reader belongs to one
// goroutine.
func (l *Log) Reader() *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Reader{log: l, next: l.next}
}

// ReaderAfter follows the log behind an event; one beyond the newest counts as the newest.
func (l *Log) ReaderAfter(seq uint64) *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Reader{log: l, next: min(seq, l.next-1) + 1}
}

// Newest is the number of the newest event; 0 before the first.
func (l *Log) Newest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next - 1
}

// Reader is a cursor in a log.
type Reader struct {
	log  *Log
	next uint64
}

// Position is the number of the event before the one that Next returns.
func (r *Reader) Position() uint64 { return r.next - 1 }

// Next returns the next event, waiting for it until ctx ends. Lost is how many
// events were overwritten before this reader reached them.
func (r *Reader) Next(ctx context.Context) (e Event, lost uint64, err error) {
	for {
		e, lost, grew := r.take()
		if grew == nil {
			return e, lost, nil
		}
		select {
		case <-grew:
		case <-ctx.Done():
			return Event{}, 0, context.Cause(ctx)
		}
	}
}

// take returns the next event, or the channel that closes when there is one.
func (r *Reader) take() (e Event, lost uint64, grew <-chan struct{}) {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.next == l.next {
		l.wait = true
		return Event{}, 0, l.grew
	}
	if oldest := l.next - uint64(len(l.ring)); r.next < oldest {
		lost, r.next = oldest-r.next, oldest
	}
	e = l.ring[(r.next-1)%Capacity]
	r.next++
	return e, lost, nil
}
