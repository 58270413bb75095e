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

// Causes that a client gives for the end of a stream.
var (
	errAborted = errors.New("the client aborted the stream")
	// ErrFinished is what a stream gives once its client has ended it.
	ErrFinished = errors.New("the client finished the stream")
)

// Stream carries bytes beside a call. It belongs to the call that opened it,
// and is known by that call's number and serial. Packets of both sides:
//
//	CONTINUE data    data, or in a packet of its own type the length of a hole
//	CONTINUE empty   from the server: no more data, and the stream stays open
//	OK empty         from the client: finished; answered by OK empty or by ERROR
//	ERROR            from the client, empty: aborted; answered by OK empty
//	                 from the server, with the error: the stream is over
//
// Nothing is granted in advance. The server has one packet outstanding. It stops
// reading from the client when a stream takes none of the packets that came in.
type Stream struct {
	Client *Client
	proc   *xdr.Procedure
	header xdr.Header // of each packet to the client, except the status
	Life   context.Context
	End    context.CancelCauseFunc

	in       chan piece    // packets from the client, never closed
	took     chan struct{} // a token when something was taken from in, or life ended
	finished chan struct{} // closed when the client has sent all
	rest     piece         // of the packet that is being read; the reader's alone
	held     held          // the client's bytes that are in in and rest
	Idle     time.Duration // the longest wait for a packet, set by the reader alone; 0: unlimited

	// Guarded by the lock of the client's streams.
	hungUp   bool // the client finished or aborted, and waits for an answer
	aborted  bool
	released bool             // takes no place among the streams with a running body
	of       []authz.Resource // the objects of the call that opened it
	still    func() error     // whether it may go on; nil: no check is needed
	over     bool             // the body has returned, and the client was sent the outcome
}

// newStream makes the stream of a call; its packets carry the call's number and serial.
func newStream(c *Client, proc *xdr.Procedure, h xdr.Header) *Stream {
	h.Type = xdr.TypeStream
	st := &Stream{
		Client: c, proc: proc, header: h,
		in: make(chan piece, StreamQueue), took: make(chan struct{}, 1), finished: make(chan struct{}),
	}
	st.Life, st.End = context.WithCancelCause(c.Life)
	st.held.client = c
	context.AfterFunc(st.Life, func() { st.held.end(); mark(st.took) })
	return st
}

// piece is the content of one packet: data or, in a sparse stream, the length of a hole.
type piece struct {
	data []byte
	size int // bytes that the client is counted for it
	hole int64
}

// held counts the bytes that a client has sent to a stream and the stream has not taken yet.
type held struct {
	client *Client

	mu    sync.Mutex
	bytes int
	over  bool // the stream is, and nothing is counted any more
}

// add counts n more bytes, unless the stream is over.
func (h *held) add(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over {
		h.bytes += n
		h.client.Server.Memory.Take(h.client, n)
	}
}

// remove subtracts n bytes, unless the stream is over.
func (h *held) remove(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over {
		h.bytes -= n
		h.client.Server.Memory.Give(h.client, n)
	}
}

// end gives back all counted bytes and stops the count.
func (h *held) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over {
		h.over = true
		h.client.Server.Memory.Give(h.client, h.bytes)
	}
}

func (p piece) empty() bool { return len(p.data) == 0 && p.hole == 0 }

// Read takes data that the client sent; io.EOF when it has sent all. It is for streams
// without holes.
func (st *Stream) Read(p []byte) (int, error) {
	hole, err := st.Next()
	if err != nil {
		return 0, err
	}
	if hole > 0 {
		return 0, fault.New(fault.Invalid, fault.Call, "a hole came in a stream that was not opened as sparse")
	}
	n := copy(p, st.rest.data)
	if st.rest.data = st.rest.data[n:]; len(st.rest.data) == 0 {
		st.held.remove(st.rest.size)
	}
	return n, nil
}

// Next waits until there is something to read. It takes a hole and gives its length;
// it leaves data for Read.
func (st *Stream) Next() (hole int64, err error) {
	for st.rest.empty() {
		select {
		case st.rest = <-st.in: // packets that came before the end are read before it
			mark(st.took)
			continue
		default:
		}
		var late <-chan time.Time
		if st.Idle > 0 {
			late = time.After(st.Idle)
		}
		select {
		case st.rest = <-st.in:
			mark(st.took)
		case <-late:
			return 0, fault.New(fault.Timeout, fault.Call, "nothing more came for %v", st.Idle)
		case <-st.finished:
			if len(st.in) == 0 {
				return 0, io.EOF
			}
		case <-st.Life.Done():
			return 0, context.Cause(st.Life)
		}
	}
	hole, st.rest.hole = st.rest.hole, 0
	return hole, nil
}

// Write sends to the client, and returns when the socket has taken it.
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
	if err := context.Cause(st.Life); err != nil {
		return err
	}
	taken := make(chan struct{})
	st.send(xdr.StatusContinue, chunk, func() { close(taken) })
	return st.await(taken)
}

// WriteHole sends the length of a hole, in a sparse stream.
func (st *Stream) WriteHole(n int64) error {
	if err := context.Cause(st.Life); err != nil {
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
	case <-st.Life.Done():
		return context.Cause(st.Life)
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

// run moves the data, then sends the client the outcome.
func (st *Stream) run(body StreamBody) {
	set := st.Client.Streams
	err := body(st.Life, st)
	st.End(ErrFinished)
	set.release(st)
	if err == nil && st.proc.Stream != xdr.StreamUp && set.waiting(st) {
		st.send(xdr.StatusContinue, nil, nil)
	}
	switch set.conclude(st, err) {
	case concludeOK:
		st.send(xdr.StatusOK, nil, nil)
	case concludeError:
		st.sendError(err)
	case concludeLater:
	}
}

// hangUp takes the client's last word. It is answered when the body has ended,
// or at once when it already has.
func (st *Stream) hangUp(aborted bool) {
	over, first := st.Client.Streams.hangUp(st, aborted)
	if !first {
		return
	}
	close(st.finished)
	switch {
	case over:
		st.send(xdr.StatusOK, nil, nil)
	case aborted:
		st.End(errAborted)
	case st.proc.Stream == xdr.StreamDown:
		st.End(ErrFinished)
	}
}

// streamPacket passes a packet to its stream. While the stream's queue is full, it waits,
// and the server reads nothing from the client. It drops packets of ended streams.
func (c *Client) streamPacket(f *frame) error {
	st := c.Streams.find(f)
	if st == nil {
		return nil
	}
	switch {
	case f.Type == xdr.TypeStreamHole:
		return c.deliverHole(st, f.payload)
	case f.Status == xdr.StatusOK:
		st.hangUp(false)
	case f.Status == xdr.StatusError:
		st.hangUp(true)
	case f.Status == xdr.StatusContinue && len(f.payload) > 0:
		return c.deliver(st, piece{data: f.payload, size: len(f.payload)})
	}
	return nil
}

// deliverHole queues a hole. One that is none ends the stream.
func (c *Client) deliverHole(st *Stream, payload []byte) error {
	var hole xdr.StreamHole
	r := xdr.NewReader(payload)
	if err := hole.Decode(r); err != nil || hole.Length <= 0 || hole.Flags != 0 {
		st.End(fault.New(fault.Invalid, fault.Call, "a hole of %d bytes, flags 0x%x, is none", hole.Length, hole.Flags))
		return nil
	}
	return c.deliver(st, piece{hole: hole.Length})
}

// deliver queues data for the stream's body. If the body takes no data for too long, the
// stream ends, so that the client's other calls can continue.
func (c *Client) deliver(st *Stream, p piece) error {
	if st.proc.Stream == xdr.StreamDown || !c.Streams.waiting(st) {
		return nil
	}
	st.held.add(p.size)
	patience := c.Server.Limits.Stall
	stalled := time.AfterFunc(patience, func() {
		st.End(fault.New(fault.Timeout, fault.Call, "the stream took nothing for %v", patience))
	})
	defer stalled.Stop()
	return c.whileNotReading(st.took, func() bool {
		if st.Life.Err() != nil {
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
