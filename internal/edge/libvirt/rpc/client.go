package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/mechanism/polkit"
)

// Reasons why a connection ended although neither side did wrong.
var (
	errClosed   = errors.New("the client closed the connection")
	errStopping = errors.New("the daemon stops")
	errCrowd    = errors.New("its owner has too many connections")
)

// Client is one connection. Its goroutines, all ended before serve returns:
//
//	read loop    takes packets; answers keepalive and passes the rest on
//	write loop   the only writer; sends the packets in out, in order
//	work         one for each call, stream and subscription to events
//
// A call that was begun runs to its end even if the connection ends: half a start
// is worse than a start without a reader for its answer. Streams end with the connection.
type Client struct {
	Server  *Server
	conn    net.Conn
	log     *slog.Logger
	Session *Session
	Owner   authz.Owner // the user, process or host that the connection counts for

	// Life ends with the connection, and its cause is the reason. When the daemon stops,
	// reading ends before life, so that calls in flight can still be answered.
	Life     context.Context
	End      context.CancelCauseFunc
	Reading  context.Context
	stopRead context.CancelCauseFunc
	calls    context.Context // of its calls, which do not end with it; has its turns

	tls     *tls.Conn              // conn, of a client from another host; nil: a unix socket's
	proof   *listener.Certificates // those that its certificate was found good by
	out     chan *outgoing
	work    sync.WaitGroup
	running chan struct{} // a place for each ordinary call that may run at a time
	intake  *Intake
	alive   *keepalive
	Streams *Streams

	// These are set before the first call. The timer bounds how long the client may take to
	// come in. For a client that polkit decides about: its process, or why that is unknown.
	greeting *time.Timer
	process  polkit.Process
	lost     error

	strange bool // not authenticated yet; guarded by the server
}

// NewClient makes the state of a new connection; serve runs it.
func NewClient(s *Server, conn net.Conn, readOnly bool) *Client {
	p := listener.PeerOf(conn)
	c := &Client{
		Server:  s,
		conn:    conn,
		log:     s.log.With("pid", p.PID, "uid", p.UID),
		out:     make(chan *outgoing, s.Limits.queue),
		running: make(chan struct{}, s.Limits.Running),
		intake:  NewIntake(s.Limits.Calls, s.Limits.intake(readOnly)),
		alive:   newKeepalive(),
		Streams: NewStreams(s.Limits.Streams),
	}
	// Not a child of the daemon's context: the daemon hangs up first, and
	// ends the connection only when the calls in flight were answered.
	c.Life, c.End = context.WithCancelCause(context.Background())
	c.Reading, c.stopRead = context.WithCancelCause(c.Life)
	c.calls = s.calls
	c.Session = newSession(c, p, readOnly)
	return c
}

// Serve runs the connection to its end. It returns only after calls that outlive the
// connection, so the bound on connections also bounds those calls.
func (c *Client) Serve() {
	if !c.secure() {
		return
	}
	if c.tls != nil {
		defer c.proof.Watch(c.tls, c.expel)()
	}
	closing := context.AfterFunc(c.Life, func() { _ = c.conn.Close() })
	if c.Server.reception.AsksPolkit(c.Session.Who()) {
		c.process, c.lost = polkit.Find(c.Session.peer.PID, c.Session.peer.UID)
	}
	c.greeting = time.AfterFunc(c.Server.Limits.Handshake, func() {
		if !c.Session.authenticated() {
			c.End(fault.New(fault.Timeout, fault.Call, "no authentication in time"))
		}
	})
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.writeLoop()
	}()

	err := c.readLoop()
	if c.Reading.Err() != nil && c.Life.Err() == nil {
		c.finishCalls()
	}
	c.End(err)
	c.greeting.Stop()
	<-written
	c.drain()
	c.work.Wait()
	c.drain()
	c.alive.stop()
	if closing() {
		_ = c.conn.Close()
	}
	c.Session.end()
	c.log.Debug("client gone", "cause", context.Cause(c.Life))
}

// drain drops the queued packets that will not be sent.
func (c *Client) drain() {
	for {
		select {
		case o := <-c.out:
			o.finish()
		default:
			return
		}
	}
}

// hangUp ends the reading of calls, from any goroutine.
func (c *Client) hangUp() {
	c.stopRead(errStopping)
	_ = c.conn.SetReadDeadline(time.Now())
}

// finishCalls waits for the calls in flight and sends the queued packets.
func (c *Client) finishCalls() {
	c.Streams.endAll(errStopping)
	idle := make(chan struct{})
	go func() { // ends with the calls, which serve waits for too
		c.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		c.send(&outgoing{last: true})
		<-c.Life.Done()
	case <-c.Life.Done():
	}
}

// readLoop takes packets until the connection or the daemon ends, and gives the reason.
func (c *Client) readLoop() error {
	for {
		f, err := c.readFrame()
		if err != nil {
			if ended := context.Cause(c.Reading); ended != nil {
				return ended
			}
			return err
		}
		if err := c.take(f); err != nil {
			f.closeFiles()
			c.letGo(f)
			return err
		}
	}
}

func (c *Client) readFrame() (*frame, error) {
	n, err := ReadLength(c.conn)
	if err != nil {
		return nil, err
	}
	if limit := c.Session.frameLimit(); n > limit {
		return nil, fault.New(fault.Invalid, fault.Call, "packet of %d bytes is over this connection's limit of %d", n, limit)
	}
	f, err := c.readRest(n)
	if err != nil {
		return nil, err
	}
	c.alive.heard()
	if err := f.readFiles(c.conn); err != nil {
		c.letGo(f)
		return nil, err
	}
	return f, nil
}

// readRest reads the rest of a packet, after the length word.
func (c *Client) readRest(n int) (*frame, error) {
	var r io.Reader = c.conn
	if n > growth {
		p := patient{c.conn, c.Server.Limits.Patience, c.Reading}
		defer p.done()
		r = p
	}
	var held frame
	f, err := readBody(r, n, func(more int) { c.hold(&held, more) })
	if err != nil {
		c.letGo(&held)
		return nil, err
	}
	f.held = held.held
	return f, nil
}

// take passes one packet to its handler. An error ends the connection.
func (c *Client) take(f *frame) error {
	if f.Program == xdr.ProgramKeepalive {
		f.closeFiles()
		c.letGo(f)
		c.alive.take(f)
		return nil
	}
	switch f.Type {
	case xdr.TypeCall, xdr.TypeCallWithFDs:
		return c.call(f)
	case xdr.TypeStream, xdr.TypeStreamHole:
		c.letGo(f) // the stream counts its packets
		return c.streamPacket(f)
	case xdr.TypeReply, xdr.TypeReplyWithFDs, xdr.TypeMessage:
	}
	return fault.New(fault.Invalid, fault.Call, "a client does not send packets of type %d", f.Type)
}

// call admits a call and starts its goroutine, or answers with the reason against it.
// While the client has too many calls in flight, it waits, and the server reads nothing.
func (c *Client) call(f *frame) error {
	r, err := c.route(f)
	if err != nil {
		f.closeFiles()
		c.letGo(f)
		c.replyError(f.Header, err, nil)
		return nil
	}
	size := len(f.payload)
	if err := c.whileNotReading(c.intake.freed, func() bool { return c.intake.Take(size) }); err != nil {
		return err
	}
	c.work.Go(func() { c.answer(r, f) })
	return nil
}

// whileNotReading waits until ready returns true; it asks again at each change. Meanwhile
// the client's pings are not read, so it gets pongs without them.
func (c *Client) whileNotReading(change <-chan struct{}, ready func() bool) error {
	if ready() {
		return nil
	}
	c.alive.pause()
	defer c.alive.heard()
	tick := time.NewTicker(pongInterval)
	defer tick.Stop()
	for !ready() {
		select {
		case <-change:
		case <-tick.C:
			c.alive.reassure()
		case <-c.Reading.Done():
			return context.Cause(c.Reading)
		}
	}
	return nil
}

// writeLoop sends until the connection ends. It gives up a client that takes nothing
// for too long, because that client holds replies. No other client waits for it.
func (c *Client) writeLoop() {
	for {
		var o *outgoing
		select {
		case o = <-c.out:
		case <-c.alive.owed:
			o = c.alive.packet(xdr.ProcKeepalivePong)
		case <-c.alive.due:
			o = c.alive.packet(xdr.ProcKeepalivePing)
		case <-c.Life.Done():
			return
		}
		err := o.write(c.conn, c.Server.Limits.Patience)
		o.finish()
		switch {
		case err != nil:
			c.End(fault.Wrap(err, fault.Failed, fault.Call, "cannot write to the client"))
			return
		case o.last:
			c.End(errClosed)
			return
		}
	}
}

// send queues a packet behind all others, waiting for room. It gives false when the
// connection ended first; the packet is then dropped.
func (c *Client) send(o *outgoing) bool {
	c.count(o)
	select {
	case c.out <- o:
		return true
	case <-c.Life.Done():
		o.finish()
		return false
	}
}

// count counts a packet until it was sent or dropped.
func (c *Client) count(o *outgoing) {
	size, done := len(o.packet), o.done
	c.Server.Memory.Take(c, size)
	o.done = func() {
		c.Server.Memory.Give(c, size)
		if done != nil {
			done()
		}
	}
}

// replyError answers a call that failed.
func (c *Client) replyError(h xdr.Header, err error, done func()) {
	h.Type, h.Status = xdr.TypeReply, xdr.StatusError
	packet, encodeErr := xdr.AppendPacket(nil, h, NetError(err), 0)
	if encodeErr != nil { // cannot be: the text is bounded
		c.End(encodeErr)
	}
	c.send(&outgoing{packet: packet, done: done})
}
