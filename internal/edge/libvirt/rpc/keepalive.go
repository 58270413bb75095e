package rpc

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

const (
	// pongInterval is the time between unsolicited pongs to a client that pings, while
	// nothing is read from it. Clients ping once a second at most.
	pongInterval = time.Second
	// pingInterval and pingCount bound the silence of a client that asked for pings:
	// after pingCount silent intervals, its connection ends.
	pingInterval = 5 * time.Second
	pingCount    = 5
)

// keepalive answers pings, and pings clients that asked to be pinged. It never
// queues: a pong owed twice is sent once, because any packet proves life.
type keepalive struct {
	owed chan struct{} // a pong is owed
	due  chan struct{} // a ping is due

	pings  atomic.Bool  // the client has pinged before
	paused atomic.Bool  // nothing is read at present
	made   time.Time    // with a reading of the monotonic clock
	last   atomic.Int64 // when a packet came, in nanoseconds after made

	mu     sync.Mutex
	watch  *time.Timer // nil until the client asks for pings
	missed int
	looked int64 // when the last ping fell due, as last counts
}

// newKeepalive makes the keepalive state of a connection; it sends no pings yet.
func newKeepalive() *keepalive {
	return &keepalive{made: time.Now(), owed: make(chan struct{}, 1), due: make(chan struct{}, 1)}
}

// heard notes that a packet came, or that packets are read again.
func (k *keepalive) heard() {
	k.last.Store(int64(time.Since(k.made)))
	k.paused.Store(false)
}

// pause notes that nothing is read from now on, so silence means nothing.
func (k *keepalive) pause() { k.paused.Store(true) }

// take handles a packet of the keepalive program.
func (k *keepalive) take(f *frame) {
	if f.Type == xdr.TypeMessage && f.Proc == xdr.ProcKeepalivePing {
		k.pings.Store(true)
		mark(k.owed)
	}
}

// reassure sends an unsolicited pong to a client that pings, because the server
// cannot see its next ping.
func (k *keepalive) reassure() {
	if k.pings.Load() {
		mark(k.owed)
	}
}

// watchOver starts to ping. It calls end to end the connection when no answer comes.
func (k *keepalive) watchOver(end func(error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watch != nil {
		return
	}
	k.heard()
	k.watch = time.AfterFunc(pingInterval, func() { k.look(end) })
}

// look runs once an interval.
func (k *keepalive) look(end func(error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, last := int64(time.Since(k.made)), k.last.Load()
	if k.paused.Load() || last >= k.looked { // by that time and not by the interval: a busy host looks late
		k.missed = 0
	} else if k.missed++; k.missed > pingCount {
		end(fault.New(fault.Timeout, fault.Call, "the client did not answer for %v", time.Duration(now-last).Round(time.Second)))
		return
	}
	k.looked = now
	mark(k.due)
	k.watch.Reset(pingInterval)
}

// stop ends the watch.
func (k *keepalive) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watch != nil {
		k.watch.Stop()
	}
}

// packet makes a ping or a pong.
func (k *keepalive) packet(proc int32) *outgoing {
	h := xdr.Header{Program: xdr.ProgramKeepalive, Version: xdr.Version, Proc: proc, Type: xdr.TypeMessage}
	packet, _ := xdr.AppendRaw(nil, h, nil) // fails over the size limit only
	return &outgoing{packet: packet}
}

// mark puts the token into a channel of one.
func mark(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
