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

// keepalive answers pings, and pings clients that asked for that. It does not queue: two
// pings may be answered by one pong, because any packet shows that the peer is alive.
type keepalive struct {
	pongDue chan struct{} // holds a token when a pong is to be sent
	pingDue chan struct{} // holds a token when a ping is to be sent

	clientPings atomic.Bool  // the client has pinged before
	readPaused  atomic.Bool  // nothing is read at present
	created     time.Time    // with a reading of the monotonic clock
	lastPacket  atomic.Int64 // when a packet came, in nanoseconds after created

	mu       sync.Mutex
	timer    *time.Timer // nil until the client asks for pings
	missed   int
	lastTick int64 // when the last ping became due, in nanoseconds after created
}

// newKeepalive makes the keepalive state of a connection; it sends no pings yet.
func newKeepalive() *keepalive {
	return &keepalive{created: time.Now(), pongDue: make(chan struct{}, 1), pingDue: make(chan struct{}, 1)}
}

// packetReceived notes that a packet came, or that packets are read again.
func (k *keepalive) packetReceived() {
	k.lastPacket.Store(int64(time.Since(k.created)))
	k.readPaused.Store(false)
}

// pauseReading notes that nothing is read from now on, so that silence is not a missed answer.
func (k *keepalive) pauseReading() { k.readPaused.Store(true) }

// handle handles a packet of the keepalive program.
func (k *keepalive) handle(f *frame) {
	if f.Type == xdr.TypeMessage && f.Proc == xdr.ProcKeepalivePing {
		k.clientPings.Store(true)
		signal(k.pongDue)
	}
}

// sendPongUnasked sends an unsolicited pong to a client that pings: while nothing is read,
// the server does not see its pings.
func (k *keepalive) sendPongUnasked() {
	if k.clientPings.Load() {
		signal(k.pongDue)
	}
}

// startPinging starts to ping. It calls end when the client does not answer.
func (k *keepalive) startPinging(end func(error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		return
	}
	k.packetReceived()
	k.timer = time.AfterFunc(pingInterval, func() { k.tick(end) })
}

// tick runs once an interval.
func (k *keepalive) tick(end func(error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, last := int64(time.Since(k.created)), k.lastPacket.Load()
	if k.readPaused.Load() || last >= k.lastTick { // since the last tick, not since an interval ago: on a busy host ticks are late
		k.missed = 0
	} else if k.missed++; k.missed > pingCount {
		end(fault.New(fault.Timeout, fault.Call, "the client did not answer for %v", time.Duration(now-last).Round(time.Second)))
		return
	}
	k.lastTick = now
	signal(k.pingDue)
	k.timer.Reset(pingInterval)
}

// stop ends the watch.
func (k *keepalive) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Stop()
	}
}

// packet makes a ping or a pong.
func (k *keepalive) packet(proc int32) *outgoing {
	h := xdr.Header{Program: xdr.ProgramKeepalive, Version: xdr.Version, Proc: proc, Type: xdr.TypeMessage}
	packet, _ := xdr.AppendRaw(nil, h, nil) // fails over the size limit only
	return &outgoing{packet: packet}
}

// signal puts a token into a channel with room for one, if it has none.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
