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
	errClosed             = errors.New("the client closed the connection")
	errStopping           = errors.New("the daemon stops")
	errTooManyConnections = errors.New("its owner has too many connections")
)

// Client is one connection. Its goroutines, all ended before Serve returns:
//
//	read loop    reads packets; handles keepalive and dispatches the others
//	write loop   the only writer; sends the packets in sendQueue, in order
//	work         one for each call, stream and subscription to events
//
// A call that has begun runs to its end even if the connection ends: half a start
// is worse than a start whose answer is not read. Streams end with the connection.
type Client struct {
	Server  *Server
	conn    net.Conn
	log     *slog.Logger
	Session *Session
	Owner   authz.Owner // the user, process or host that the connection counts for

	// Ctx ends with the connection, and its cause is the reason. When the daemon stops,
	// ReadCtx ends before Ctx, so that calls in flight can still be answered.
	Ctx      context.Context
	End      context.CancelCauseFunc
	ReadCtx  context.Context
	stopRead context.CancelCauseFunc
	callCtx  context.Context // of its calls, which do not end with the connection; carries its queue of the scheduler

	tls          *tls.Conn              // conn, of a client from another host; nil: a unix socket
	certificates *listener.Certificates // of the listener, which verify the client's certificate
	sendQueue    chan *outgoing
	work         sync.WaitGroup
	slots        chan struct{} // holds a token for each ordinary call that runs
	intake       *Intake
	keepalive    *keepalive
	Streams      *Streams

	// These are set before the first call. The timer bounds how long the client may take to
	// authenticate. The process, or why it is unknown, is for clients that polkit decides about.
	authTimer  *time.Timer
	process    polkit.Process
	processErr error

	anonymous bool // not authenticated yet; guarded by the server
}

// NewClient makes the state of a new connection; Serve runs it.
func NewClient(s *Server, conn net.Conn, readOnly bool) *Client {
	p := listener.PeerOf(conn)
	c := &Client{
		Server:    s,
		conn:      conn,
		log:       s.log.With("pid", p.PID, "uid", p.UID),
		sendQueue: make(chan *outgoing, s.Limits.sendQueue),
		slots:     make(chan struct{}, s.Limits.RunningCalls),
		intake:    NewIntake(s.Limits.Calls, s.Limits.intakeBytes(readOnly)),
		keepalive: newKeepalive(),
		Streams:   NewStreams(s.Limits.Streams),
	}
	// Not a child of the daemon's context: the daemon first stops the reading, and
	// ends the connection only when the calls in flight were answered.
	c.Ctx, c.End = context.WithCancelCause(context.Background())
	c.ReadCtx, c.stopRead = context.WithCancelCause(c.Ctx)
	c.callCtx = s.callCtx
	c.Session = newSession(c, p, readOnly)
	return c
}

// Serve runs the connection to its end. It returns only after calls that outlive the
// connection, so the bound on connections also bounds those calls.
func (c *Client) Serve() {
	if !c.tlsHandshake() {
		return
	}
	if c.tls != nil {
		defer c.certificates.Watch(c.tls, c.closeRevoked)()
	}
	closing := context.AfterFunc(c.Ctx, func() { _ = c.conn.Close() })
	if c.Server.authenticator.AsksPolkit(c.Session.Principal()) {
		c.process, c.processErr = polkit.Find(c.Session.peer.PID, c.Session.peer.UID)
	}
	c.authTimer = time.AfterFunc(c.Server.Limits.Handshake, func() {
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
	if c.ReadCtx.Err() != nil && c.Ctx.Err() == nil {
		c.finishCalls()
	}
	c.End(err)
	c.authTimer.Stop()
	<-written
	c.dropQueued()
	c.work.Wait()
	c.dropQueued()
	c.keepalive.stop()
	if closing() {
		_ = c.conn.Close()
	}
	c.Session.close()
	c.log.Debug("client gone", "cause", context.Cause(c.Ctx))
}

// dropQueued drops the queued packets that will not be sent.
func (c *Client) dropQueued() {
	for {
		select {
		case o := <-c.sendQueue:
			o.release()
		default:
			return
		}
	}
}

// stopReading ends the reading of calls, from any goroutine.
func (c *Client) stopReading() {
	c.stopRead(errStopping)
	_ = c.conn.SetReadDeadline(time.Now())
}

// finishCalls waits for the calls in flight and sends the queued packets.
func (c *Client) finishCalls() {
	c.Streams.endAll(errStopping)
	idle := make(chan struct{})
	go func() { // ends with the calls, and Serve waits for these too
		c.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		c.send(&outgoing{closeAfter: true})
		<-c.Ctx.Done()
	case <-c.Ctx.Done():
	}
}

// readLoop reads packets until the connection or the daemon ends, and returns the reason.
func (c *Client) readLoop() error {
	for {
		f, err := c.readFrame()
		if err != nil {
			if ended := context.Cause(c.ReadCtx); ended != nil {
				return ended
			}
			return err
		}
		if err := c.dispatch(f); err != nil {
			f.closeFiles()
			c.releaseFrame(f)
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
	c.keepalive.packetReceived()
	if err := f.readFiles(c.conn); err != nil {
		c.releaseFrame(f)
		return nil, err
	}
	return f, nil
}

// readRest reads the rest of a packet, after the length word.
func (c *Client) readRest(n int) (*frame, error) {
	var r io.Reader = c.conn
	if n > readChunk {
		p := deadlineReader{c.conn, c.Server.Limits.PacketTimeout, c.ReadCtx}
		defer p.clearDeadline()
		r = p
	}
	var held frame
	f, err := readBody(r, n, func(more int) { c.chargeFrame(&held, more) })
	if err != nil {
		c.releaseFrame(&held)
		return nil, err
	}
	f.charged = held.charged
	return f, nil
}

// dispatch passes one packet to its handler. An error ends the connection.
func (c *Client) dispatch(f *frame) error {
	if f.Program == xdr.ProgramKeepalive {
		f.closeFiles()
		c.releaseFrame(f)
		c.keepalive.handle(f)
		return nil
	}
	switch f.Type {
	case xdr.TypeCall, xdr.TypeCallWithFDs:
		return c.startCall(f)
	case xdr.TypeStream, xdr.TypeStreamHole:
		c.releaseFrame(f) // the stream counts its packets
		return c.streamPacket(f)
	case xdr.TypeReply, xdr.TypeReplyWithFDs, xdr.TypeMessage:
	}
	return fault.New(fault.Invalid, fault.Call, "a client does not send packets of type %d", f.Type)
}

// startCall starts the goroutine of a call, or answers with the error that refuses it.
// While the client has too many calls in flight, it waits, and the server reads nothing.
func (c *Client) startCall(f *frame) error {
	r, err := c.lookupRoute(f)
	if err != nil {
		f.closeFiles()
		c.releaseFrame(f)
		c.replyError(f.Header, err, nil)
		return nil
	}
	size := len(f.payload)
	if err := c.waitReady(c.intake.freed, func() bool { return c.intake.Acquire(size) }); err != nil {
		return err
	}
	c.work.Go(func() { c.runCall(r, f) })
	return nil
}

// waitReady waits until ready returns true; it asks again at each change. Meanwhile nothing
// is read from the client, so it gets pongs to pings that are still unread.
func (c *Client) waitReady(change <-chan struct{}, ready func() bool) error {
	if ready() {
		return nil
	}
	c.keepalive.pauseReading()
	defer c.keepalive.packetReceived()
	tick := time.NewTicker(pongInterval)
	defer tick.Stop()
	for !ready() {
		select {
		case <-change:
		case <-tick.C:
			c.keepalive.sendPongUnasked()
		case <-c.ReadCtx.Done():
			return context.Cause(c.ReadCtx)
		}
	}
	return nil
}

// writeLoop sends until the connection ends. It ends the connection of a client that reads
// nothing for too long, because its replies take memory. No other client waits for it.
func (c *Client) writeLoop() {
	for {
		var o *outgoing
		select {
		case o = <-c.sendQueue:
		case <-c.keepalive.pongDue:
			o = c.keepalive.packet(xdr.ProcKeepalivePong)
		case <-c.keepalive.pingDue:
			o = c.keepalive.packet(xdr.ProcKeepalivePing)
		case <-c.Ctx.Done():
			return
		}
		err := o.write(c.conn, c.Server.Limits.PacketTimeout)
		o.release()
		switch {
		case err != nil:
			c.End(fault.Wrap(err, fault.Failed, fault.Call, "cannot write to the client"))
			return
		case o.closeAfter:
			c.End(errClosed)
			return
		}
	}
}

// send queues a packet behind all others, and waits for room. It returns false when the
// connection ended first; the packet is then dropped.
func (c *Client) send(o *outgoing) bool {
	c.chargeOutgoing(o)
	select {
	case c.sendQueue <- o:
		return true
	case <-c.Ctx.Done():
		o.release()
		return false
	}
}

// chargeOutgoing charges the client with a packet until it was sent or dropped.
func (c *Client) chargeOutgoing(o *outgoing) {
	size, done := len(o.packet), o.done
	c.Server.Memory.Charge(c, size)
	o.done = func() {
		c.Server.Memory.Release(c, size)
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
