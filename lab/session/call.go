package session

import (
	"context"
	"encoding/json"
	"io"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// call is one that is open at the guest.
type call struct {
	session *Session
	id      uint32
	input   *wire.Outlet
	inlets  map[uint8]*wire.Inlet

	once   sync.Once
	done   chan struct{} // closed with the answer
	result json.RawMessage
	err    error
}

// open sends a request. The call is over when done is closed, or when the caller
// gives it up.
func (s *Session) open(ctx context.Context, do string, args any) (*call, error) {
	payload, err := json.Marshal(wire.Request{Do: do, Args: args})
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, fault.Agent, "cannot ask for %s", do)
	}
	if len(payload) > wire.MaxPayload {
		return nil, fault.New(fault.NoCapacity, fault.Agent, "a call of %d bytes is beyond %d: put what is long into a file", len(payload), wire.MaxPayload)
	}
	select {
	case s.slots <- struct{}{}:
	case <-s.over:
		return nil, s.Err()
	case <-ctx.Done():
		return nil, fault.Wrap(context.Cause(ctx), fault.Of(ctx.Err()), fault.Agent, "cannot call the lab's agent: %d calls are open", wire.MaxCalls)
	}
	c := &call{session: s, done: make(chan struct{}), inlets: map[uint8]*wire.Inlet{}}
	s.mu.Lock()
	if s.why != nil {
		s.mu.Unlock()
		return nil, s.why
	}
	s.last++
	c.id = s.last
	c.input = wire.NewOutlet(s.epoch, c.id, wire.Input, s.out.Send)
	for _, stream := range []uint8{wire.Output, wire.Errors} {
		c.inlets[stream] = wire.NewInlet(s.epoch, c.id, stream, s.out.Send)
	}
	s.calls[c.id] = c
	s.mu.Unlock()
	// A guest that does not read must not hold the caller beyond its time.
	sent := make(chan error, 1)
	go func() { sent <- s.out.Send(wire.Frame{Kind: wire.Call, Epoch: s.epoch, ID: c.id, Payload: payload}) }()
	select {
	case err = <-sent:
	case <-ctx.Done():
		err = fault.Wrap(context.Cause(ctx), fault.Of(ctx.Err()), fault.Agent, "cannot send to the lab's agent")
		go func() {
			if <-sent == nil {
				c.abandon(err)
			}
		}()
	}
	return c, err
}

func (c *call) push(f wire.Frame) error {
	if i := c.inlets[f.Stream]; i != nil {
		return i.Push(f.Payload)
	}
	return nil
}

// wait gives the answer, decoded into result.
func (c *call) wait(ctx context.Context, result any) error {
	select {
	case <-c.done:
	case <-ctx.Done():
		err := fault.Wrap(context.Cause(ctx), fault.Of(ctx.Err()), fault.Agent, "the lab's agent has not answered in time")
		c.abandon(err)
		return err
	}
	if c.err != nil || result == nil || len(c.result) == 0 {
		return c.err
	}
	if err := json.Unmarshal(c.result, result); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Agent, "cannot read the answer of the lab's agent")
	}
	return nil
}

// finish keeps the answer and ends the streams.
func (c *call) finish(a wire.Answer, err error) {
	c.once.Do(func() {
		if err == nil && a.Error != "" {
			err = fault.New(kindNamed(a.Kind), fault.Agent, "%s", a.Error)
		}
		c.err = err
		streams := err
		if streams == nil {
			streams = io.EOF
		}
		for _, i := range c.inlets {
			i.Finish(streams)
		}
		c.input.Fail(wire.ErrClosed)
		close(c.done)
	})
}

// abandon tells the guest that nobody waits any more. The guest answers all the
// same, and only then is the call's slot free.
func (c *call) abandon(why error) {
	c.finish(wire.Answer{}, why)
	go func() {
		_ = c.session.out.Send(wire.Frame{Kind: wire.Cancel, Epoch: c.session.epoch, ID: c.id})
	}()
}

// kindNamed is the reverse of fault.Kind.String.
func kindNamed(name string) fault.Kind {
	for k := fault.Internal; k <= fault.Failed; k++ {
		if k.String() == name {
			return k
		}
	}
	return fault.Failed
}
