package rpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// StreamQueue is the number of packets from the client that may wait in a stream. At
// that number, the server stops reading from the client.
const StreamQueue = 2

// Reasons for the end of a stream that come from its client.
var (
	errAborted = errors.New("the client aborted the stream")
	// ErrFinished: the client has sent all its data, or wants no more.
	ErrFinished = errors.New("the client finished the stream")
)

// Stream carries the data of the call that opened it. Its packets have that call's
// procedure number and serial. Packets of both sides:
//
//	CONTINUE data    data, or in a packet of its own type the length of a hole
//	CONTINUE empty   from the server: no more data, and the stream stays open
//	OK empty         from the client: finished; answered by OK empty or by ERROR
//	ERROR            from the client, empty: aborted; answered by OK empty
//	                 from the server, with the error: the stream has ended
//
// The protocol has no window. The server has one packet in its send queue. It stops
// reading from the client while the queue of one of its streams is full.
type Stream struct {
	Client *Client
	proc   *xdr.Procedure
	header xdr.Header // of each packet to the client, except the status
	Ctx    context.Context
	End    context.CancelCauseFunc

	in       chan streamItem // packets from the client, never closed
	inSpace  chan struct{}   // holds a token after a packet was taken from in, or Ctx has ended
	finished chan struct{}   // closed when the client has sent all
	pending  streamItem      // the rest of the packet that is being read; only the reader uses it
	unread   unreadBytes     // of the packets in in and pending
	Idle     time.Duration   // the longest wait for a packet, set by the reader; 0: unlimited

	// Guarded by the lock of the client's streams.
	clientDone bool // the client finished or aborted, and waits for an answer
	aborted    bool
	released   bool             // no longer counted as a stream with a running body
	objects    []authz.Resource // the objects of the call that opened it
	recheck    func() error     // whether the current rules still allow it; nil: no check is needed
	ended      bool             // the body has returned, and the client has not finished the stream yet
}

// newStream makes the stream of a call; its packets carry the call's number and serial.
func newStream(c *Client, proc *xdr.Procedure, h xdr.Header) *Stream {
	h.Type = xdr.TypeStream
	st := &Stream{
		Client: c, proc: proc, header: h,
		in: make(chan streamItem, StreamQueue), inSpace: make(chan struct{}, 1), finished: make(chan struct{}),
	}
	st.Ctx, st.End = context.WithCancelCause(c.Ctx)
	st.unread.client = c
	context.AfterFunc(st.Ctx, func() { st.unread.end(); signal(st.inSpace) })
	return st
}

// streamItem is the content of one packet: data or, in a sparse stream, the length of a hole.
type streamItem struct {
	data []byte
	size int // bytes that the client is charged for it
	hole int64
}

// unreadBytes counts the bytes that a client has sent to a stream and the stream has not taken yet.
type unreadBytes struct {
	client *Client

	mu     sync.Mutex
	bytes  int
	closed bool // the stream has ended, and nothing is counted any more
}

// add counts n more bytes, unless the stream has ended.
func (u *unreadBytes) add(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.bytes += n
		u.client.Server.Memory.Charge(u.client, n)
	}
}

// remove subtracts n bytes, unless the stream has ended.
func (u *unreadBytes) remove(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.bytes -= n
		u.client.Server.Memory.Release(u.client, n)
	}
}

// end releases all counted bytes and stops the count.
func (u *unreadBytes) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.closed = true
		u.client.Server.Memory.Release(u.client, u.bytes)
	}
}

func (i streamItem) empty() bool { return len(i.data) == 0 && i.hole == 0 }

// Read reads data that the client sent; io.EOF when it has sent all. A hole is an error: streams with
// holes are read with Next first.
func (st *Stream) Read(p []byte) (int, error) {
	hole, err := st.Next()
	if err != nil {
		return 0, err
	}
	if hole > 0 {
		return 0, fault.New(fault.Invalid, fault.Call, "a hole came in a stream that was not opened as sparse")
	}
	n := copy(p, st.pending.data)
	if st.pending.data = st.pending.data[n:]; len(st.pending.data) == 0 {
		st.unread.remove(st.pending.size)
	}
	return n, nil
}

// Next waits for a packet. It consumes a hole and returns its length; for data it returns 0,
// and Read reads the data.
func (st *Stream) Next() (hole int64, err error) {
	for st.pending.empty() {
		select {
		case st.pending = <-st.in: // packets that came before the end are read first
			signal(st.inSpace)
			continue
		default:
		}
		var late <-chan time.Time
		if st.Idle > 0 {
			late = time.After(st.Idle)
		}
		select {
		case st.pending = <-st.in:
			signal(st.inSpace)
		case <-late:
			return 0, fault.New(fault.Timeout, fault.Call, "nothing more came for %v", st.Idle)
		case <-st.finished:
			if len(st.in) == 0 {
				return 0, io.EOF
			}
		case <-st.Ctx.Done():
			return 0, context.Cause(st.Ctx)
		}
	}
	hole, st.pending.hole = st.pending.hole, 0
	return hole, nil
}

// Write sends data to the client, and returns when the socket has taken it.
func (st *Stream) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); {
		chunk := p[sent:min(len(p), sent+xdr.StreamData)]
		if err := st.writeChunk(chunk); err != nil {
			return sent, err
		}
		sent += len(chunk)
	}
	return len(p), nil
}

func (st *Stream) writeChunk(chunk []byte) error {
	if err := context.Cause(st.Ctx); err != nil {
		return err
	}
	taken := make(chan struct{})
	st.send(xdr.StatusContinue, chunk, func() { close(taken) })
	return st.await(taken)
}

// WriteHole sends the length of a hole, in a sparse stream.
func (st *Stream) WriteHole(n int64) error {
	if err := context.Cause(st.Ctx); err != nil {
		return err
	}
	h := st.header
	h.Type, h.Status = xdr.TypeStreamHole, xdr.StatusContinue
	packet, err := xdr.AppendPacket(nil, h, &xdr.StreamHole{Length: n}, 0)
	if err != nil {
		return err
	}
	taken := make(chan struct{})
	st.Client.send(&outgoing{packet: packet, done: func() { close(taken) }})
	return st.await(taken)
}

// await waits until the socket has taken a packet.
func (st *Stream) await(taken <-chan struct{}) error {
	select {
	case <-taken:
		return nil
	case <-st.Ctx.Done():
		return context.Cause(st.Ctx)
	}
}

func (st *Stream) send(status xdr.Status, payload []byte, done func()) {
	h := st.header
	h.Status = status
	packet, err := xdr.AppendRaw(nil, h, payload)
	if err != nil { // cannot be: chunks are bounded
		st.Client.End(err)
	}
	st.Client.send(&outgoing{packet: packet, done: done})
}

func (st *Stream) sendError(err error) {
	h := st.header
	h.Status = xdr.StatusError
	packet, encodeErr := xdr.AppendPacket(nil, h, NetError(err), 0)
	if encodeErr != nil { // cannot be: the text is bounded
		st.Client.End(encodeErr)
	}
	st.Client.send(&outgoing{packet: packet})
}

// run runs the body, then sends the client the outcome.
func (st *Stream) run(body StreamBody) {
	streams := st.Client.Streams
	err := body(st.Ctx, st)
	st.End(ErrFinished)
	streams.release(st)
	if err == nil && st.proc.Stream != xdr.StreamUp && streams.acceptsData(st) {
		st.send(xdr.StatusContinue, nil, nil)
	}
	switch streams.finish(st, err) {
	case outcomeOK:
		st.send(xdr.StatusOK, nil, nil)
	case outcomeError:
		st.sendError(err)
	case outcomeLater:
	}
}

// clientFinished handles the client's last packet. It is answered when the body has ended,
// or at once if it already has.
func (st *Stream) clientFinished(aborted bool) {
	ended, first := st.Client.Streams.clientFinished(st, aborted)
	if !first {
		return
	}
	close(st.finished)
	switch {
	case ended:
		st.send(xdr.StatusOK, nil, nil)
	case aborted:
		st.End(errAborted)
	case st.proc.Stream == xdr.StreamDown:
		st.End(ErrFinished)
	}
}

// streamPacket gives a packet to its stream. While the stream's queue is full, it waits,
// and the server reads nothing from the client. Packets of ended streams are dropped.
func (c *Client) streamPacket(f *frame) error {
	st := c.Streams.find(f)
	if st == nil {
		return nil
	}
	switch {
	case f.Type == xdr.TypeStreamHole:
		return c.deliverHole(st, f.payload)
	case f.Status == xdr.StatusOK:
		st.clientFinished(false)
	case f.Status == xdr.StatusError:
		st.clientFinished(true)
	case f.Status == xdr.StatusContinue && len(f.payload) > 0:
		return c.deliver(st, streamItem{data: f.payload, size: len(f.payload)})
	}
	return nil
}

// deliverHole queues a hole. An invalid one ends the stream.
func (c *Client) deliverHole(st *Stream, payload []byte) error {
	var hole xdr.StreamHole
	r := xdr.NewReader(payload)
	if err := hole.Decode(r); err != nil || hole.Length <= 0 || hole.Flags != 0 {
		st.End(fault.New(fault.Invalid, fault.Call, "a hole of %d bytes with flags 0x%x is invalid", hole.Length, hole.Flags))
		return nil
	}
	return c.deliver(st, streamItem{hole: hole.Length})
}

// deliver queues a packet for the stream's body. If the body takes none for too long, the
// stream ends, so that the client's other calls can continue.
func (c *Client) deliver(st *Stream, p streamItem) error {
	if st.proc.Stream == xdr.StreamDown || !c.Streams.acceptsData(st) {
		return nil
	}
	st.unread.add(p.size)
	timeout := c.Server.Limits.StreamStall
	stalled := time.AfterFunc(timeout, func() {
		st.End(fault.New(fault.Timeout, fault.Call, "the stream took nothing for %v", timeout))
	})
	defer stalled.Stop()
	return c.waitReady(st.inSpace, func() bool {
		if st.Ctx.Err() != nil {
			return true // dropped
		}
		select {
		case st.in <- p:
			return true
		default:
			return false
		}
	})
}
