// Package remote is a client of libvirt's protocol: it connects to any
// daemon that speaks it and makes calls, several at a time. It knows procedures
// by their numbers only; their meaning is left to the callers.
package remote

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// Conn is a connection, safe for concurrent use. Replies may come in any order;
// each goes to the call with its serial. Close it to end its reader.
type Conn struct {
	socket net.Conn
	turn   chan struct{} // held by the goroutine that writes, so that packets do not mix
	done   chan struct{} // closed when the reader has ended
	err    error         // why; to be read after done
	events chan Message  // the daemon's events, for the caller of Events

	mu      sync.Mutex
	serial  uint32
	waiting map[uint32]chan<- answer // one per call under way, each with room for its answer
	streams map[uint32]*Stream       // by the serial of the call that opened it
}

// answer is a daemon's reply to a call: its status and its undecoded payload.
type answer struct {
	status  xdr.Status
	payload []byte
}

// Message is an event, which a daemon sends without a call for it.
type Message struct {
	Proc    int32
	At      time.Time // of its arrival
	Payload []byte
}

// maxEvents bounds the events that wait to be read. Later ones are dropped. A
// caller that registers for events must therefore read them.
const maxEvents = 1024

// Error is what a daemon answered instead of a result. The numbers are libvirt's.
type Error struct {
	Code, Domain int32
	Message      string
}

func (e *Error) Error() string { return fmt.Sprintf("%s (error %d)", e.Message, e.Code) }

// Refused reports whether a daemon has answered, and with an error.
func Refused(err error) bool {
	_, refused := errors.AsType[*Error](err)
	return refused
}

// libvirt's error codes for a call or an argument that a daemon does not support.
const (
	codeNoSupport            = 3
	codeConfigUnsupported    = 67
	codeArgumentUnsupported  = 74
	codeOperationUnsupported = 84
)

const (
	pongPatience = 5 * time.Second
	readAhead    = 64 << 10 // bytes
)

// Unsupported reports whether the daemon refused because it does not have what
// was asked for.
func (e *Error) Unsupported() bool {
	switch e.Code {
	case codeNoSupport, codeConfigUnsupported, codeArgumentUnsupported, codeOperationUnsupported:
		return true
	}
	return false
}

// New speaks over a socket and owns it.
func New(socket net.Conn) *Conn {
	c := &Conn{
		socket: socket, turn: make(chan struct{}, 1), done: make(chan struct{}),
		events: make(chan Message, maxEvents), waiting: map[uint32]chan<- answer{}, streams: map[uint32]*Stream{},
	}
	go c.read()
	return c
}

// Close drops the connection. Calls under way end with an error.
func (c *Conn) Close() {
	_ = c.socket.Close()
	<-c.done
}

// Call makes one call and waits for its answer until ctx ends. A nil args or ret
// is an empty payload. What the daemon refuses comes back as an *Error.
func (c *Conn) Call(ctx context.Context, proc int32, args, ret xdr.Message) error {
	return c.CallOf(ctx, xdr.ProgramRemote, proc, args, ret)
}

// CallOf is Call of a procedure of another program, such as QEMU's.
func (c *Conn) CallOf(ctx context.Context, program xdr.Program, proc int32, args, ret xdr.Message) error {
	return named(program, proc, c.call(ctx, program, proc, args, ret))
}

// named says which call an error is of.
func named(program xdr.Program, proc int32, err error) error {
	if err == nil {
		return nil
	}
	name := fmt.Sprintf("call %d", proc)
	if p := xdr.Lookup(program, proc); p != nil {
		name = p.Name
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (c *Conn) call(ctx context.Context, program xdr.Program, proc int32, args, ret xdr.Message) error {
	return c.exchange(ctx, program, proc, args, ret, func(uint32) {})
}

// exchange makes a call. It passes the call's serial to before, and sends the call
// after that.
func (c *Conn) exchange(ctx context.Context, program xdr.Program, proc int32, args, ret xdr.Message, before func(serial uint32)) error {
	serial, answers := c.expect()
	defer c.forget(serial)
	before(serial)
	packet, err := xdr.AppendPacket(nil, xdr.Header{
		Program: program, Version: xdr.Version, Proc: proc, Type: xdr.TypeCall, Serial: serial,
	}, args, 0)
	if err != nil {
		return err
	}
	if err = c.send(ctx, packet); err != nil {
		return err
	}
	select {
	case a := <-answers:
		return a.into(ret)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.done:
	}
	select {
	case a := <-answers: // it came just before the end
		return a.into(ret)
	default:
		return c.err
	}
}

// Events returns the daemon's events, in the order of their arrival.
func (c *Conn) Events() <-chan Message { return c.events }

// expect gives a new call its serial and the place where its answer arrives.
func (c *Conn) expect() (uint32, <-chan answer) {
	answers := make(chan answer, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	c.waiting[c.serial] = answers
	return c.serial, answers
}

func (c *Conn) forget(serial uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, serial)
}

// send writes one packet when it is its turn, within the context's deadline. A
// packet that may be torn ends the connection, because nothing can follow it.
func (c *Conn) send(ctx context.Context, packet []byte) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.done:
		return c.err
	}
	defer func() { <-c.turn }()
	deadline, _ := ctx.Deadline()
	err := c.socket.SetWriteDeadline(deadline)
	if err == nil {
		_, err = c.socket.Write(packet)
	}
	if err != nil {
		_ = c.socket.Close()
		return fault.Wrap(err, fault.Failed, fault.Call, "cannot write to the daemon")
	}
	return nil
}

// read hands out what arrives until the connection ends.
func (c *Conn) read() {
	defer close(c.done)
	in := bufio.NewReaderSize(c.socket, readAhead)
	for {
		h, payload, err := packet(in)
		if err != nil {
			c.err = fault.Wrap(err, fault.Failed, fault.Call, "the connection to the daemon has ended")
			_ = c.socket.Close()
			c.breakStreams()
			return
		}
		switch {
		case h.Program == xdr.ProgramKeepalive && h.Proc == xdr.ProcKeepalivePing:
			c.pong()
		case h.Type == xdr.TypeReply:
			c.deliver(h, payload)
		case h.Type == xdr.TypeStream || h.Type == xdr.TypeStreamHole:
			if s := c.stream(h.Serial); s != nil {
				s.take(h, payload)
			}
		case h.Program == xdr.ProgramRemote && h.Type == xdr.TypeMessage:
			select {
			case c.events <- Message{Proc: h.Proc, At: time.Now(), Payload: payload}:
			default:
			}
		}
	}
}

// packet takes one packet off the connection. Its memory grows with the bytes that
// arrive, not with the length that the packet announces.
func packet(in io.Reader) (h xdr.Header, payload []byte, err error) {
	var length [xdr.LengthSize]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return h, nil, err
	}
	n, err := xdr.CheckLength(binary.BigEndian.Uint32(length[:]))
	if err != nil {
		return h, nil, err
	}
	var body bytes.Buffer
	if _, err := io.CopyN(&body, in, int64(n)); err != nil {
		return h, nil, err
	}
	h, err = xdr.ParseHeader(body.Next(xdr.HeaderSize))
	return h, body.Bytes(), err
}

func (c *Conn) deliver(h xdr.Header, payload []byte) {
	c.mu.Lock()
	answers := c.waiting[h.Serial]
	delete(c.waiting, h.Serial)
	c.mu.Unlock()
	if answers != nil {
		answers <- answer{h.Status, payload}
	}
}

func (c *Conn) stream(serial uint32) *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[serial]
}

// breakStreams ends all streams with the connection.
func (c *Conn) breakStreams() {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.streams))
	c.mu.Unlock()
	for _, s := range all {
		s.broken(c.err)
	}
}

// pong answers a ping. Beside a writer that is stuck it gives up: a daemon that
// does not read has no right to an answer.
func (c *Conn) pong() {
	ctx, stop := context.WithTimeout(context.Background(), pongPatience)
	defer stop()
	packet, err := xdr.AppendRaw(nil, xdr.Header{
		Program: xdr.ProgramKeepalive, Version: xdr.Version, Proc: xdr.ProcKeepalivePong, Type: xdr.TypeMessage,
	}, nil)
	if err == nil {
		_ = c.send(ctx, packet)
	}
}

func (a answer) into(ret xdr.Message) error {
	r := xdr.NewReader(a.payload)
	if a.status == xdr.StatusError {
		var e xdr.NetError
		if err := e.Decode(r); err != nil {
			return err
		}
		text := "no reason given"
		if e.Message != nil {
			text = *e.Message
		}
		return &Error{Code: e.Code, Domain: e.Domain, Message: text}
	}
	if ret != nil {
		if err := ret.Decode(r); err != nil {
			return err
		}
	}
	return r.End()
}
