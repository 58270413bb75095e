// Package session is the host's end of the lab's conversation with a machine
// that is measured: calls on one connection, as many at once as the host likes.
//
// It knows nothing of how the connection came to be: a stream of a daemon's, a
// socket of QEMU's or one of an agent outside a guest. What belongs here: calls
// and their bounds. What does not: what the calls are for.
package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// Guest is what the machine said of itself when the session began.
type Guest = wire.Greeting

// Session is a conversation with one agent. Its methods may be called from many
// goroutines.
type Session struct {
	// Guest is set by Open.
	Guest Guest

	conn  io.ReadWriteCloser
	out   *wire.Outbox
	epoch uint32
	slots chan struct{} // one for each call that is open at the guest

	mu    sync.Mutex
	last  uint32
	calls map[uint32]*call
	why   error         // it is over
	over  chan struct{} // closed then
	ended chan struct{} // the reader has
}

// Open begins a session and waits until the agent answers: a guest that is still
// booting answers when it is up. From then on the connection is the session's;
// closing it must end reads and writes that are under way. Should Open fail, it
// is closed.
func Open(ctx context.Context, conn io.ReadWriteCloser) (*Session, error) {
	s := &Session{
		conn: conn, epoch: rand.Uint32() | 1, slots: make(chan struct{}, wire.MaxCalls),
		calls: map[uint32]*call{}, over: make(chan struct{}), ended: make(chan struct{}),
	}
	s.out = wire.NewOutbox(conn, s.epoch)
	welcomed := make(chan wire.Greeting, 1)
	go s.read(wire.NewReader(conn), welcomed)
	// Beside the wait, because a guest that is not up does not read either.
	go func() {
		if _, err := conn.Write(wire.Flush()); err != nil {
			s.end(err)
			return
		}
		hello, _ := json.Marshal(wire.Greeting{Version: wire.Version})
		_ = s.out.Send(wire.Frame{Kind: wire.Hello, Epoch: s.epoch, Payload: hello})
	}()
	select {
	case s.Guest = <-welcomed:
	case <-s.over:
		err := s.why
		_ = s.Close()
		return nil, fault.Wrap(err, fault.Unresponsive, fault.Agent, "cannot begin a session with the lab's agent")
	case <-ctx.Done():
		_ = s.Close()
		return nil, fault.Wrap(context.Cause(ctx), fault.Timeout, fault.Agent,
			"the lab's agent does not answer: the guest is not up, or has no agent")
	}
	if s.Guest.Version != wire.Version {
		_ = s.Close()
		return nil, fault.New(fault.Unsupported, fault.Agent, "the lab's agent speaks version %d and this lab %d: make the image anew",
			s.Guest.Version, wire.Version)
	}
	return s, nil
}

// Close ends the session. The agent ends what it does for it when the next one
// begins, or when it sees the connection closed.
func (s *Session) Close() error {
	s.end(wire.ErrClosed)
	<-s.ended
	<-s.out.Ended()
	return nil
}

// Done is closed when the session is over, and Err says why then.
func (s *Session) Done() <-chan struct{} { return s.over }

// Err is nil as long as the session lasts.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// end fails all calls, now and later.
func (s *Session) end(why error) {
	s.mu.Lock()
	if s.why != nil {
		s.mu.Unlock()
		return
	}
	s.why = why
	calls := s.calls
	s.calls = nil
	close(s.over)
	s.mu.Unlock()
	s.out.Close(why)
	_ = s.conn.Close()
	for _, c := range calls {
		c.finish(wire.Answer{}, why)
	}
}

// read gives every frame to its call until the connection ends.
func (s *Session) read(from *wire.Reader, welcomed chan<- wire.Greeting) {
	defer close(s.ended)
	begun := false
	for {
		f, err := from.Next()
		switch {
		case errors.Is(err, io.EOF):
			s.end(fault.New(fault.Unresponsive, fault.Agent, "the connection to the lab's agent was closed"))
			return
		case err != nil:
			s.end(err)
			return
		case f.Epoch != s.epoch:
			continue // of the host before this one
		case begun && from.Skipped > 0:
			err = errors.New("bytes from the lab's agent were lost")
		case f.Kind == wire.Welcome && !begun:
			var g wire.Greeting
			if err = json.Unmarshal(f.Payload, &g); err == nil {
				begun = true
				welcomed <- g
			}
		default:
			err = s.take(f)
		}
		if err != nil {
			s.end(fault.Wrap(err, fault.Failed, fault.Agent, "cannot go on with the lab's agent"))
			return
		}
	}
}

// take handles one frame. It never waits.
func (s *Session) take(f wire.Frame) error {
	s.mu.Lock()
	c := s.calls[f.ID]
	if f.Kind == wire.Reply {
		delete(s.calls, f.ID)
	}
	s.mu.Unlock()
	if f.Kind == wire.Lost {
		return fmt.Errorf("it says: %.200s", f.Payload)
	}
	if c == nil {
		return fmt.Errorf("a frame of kind %d for no call", f.Kind)
	}
	switch f.Kind {
	case wire.Data:
		return c.push(f)
	case wire.End:
		if i := c.inlets[f.Stream]; i != nil {
			i.Finish(io.EOF)
		}
	case wire.Credit:
		return c.input.Credited(f.Payload)
	case wire.Reply:
		<-s.slots
		var a wire.Answer
		a.Result = &c.result
		err := json.Unmarshal(f.Payload, &a)
		c.finish(a, err)
		return err
	case wire.Hello, wire.Welcome, wire.Call, wire.Cancel, wire.Lost:
		return fmt.Errorf("a frame of kind %d from a guest", f.Kind)
	}
	return nil
}
