package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// sitting is one session with a host.
type sitting struct {
	agent  *Agent
	epoch  uint32
	send   wire.Send
	open   *sync.WaitGroup
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	over  bool
	calls map[uint32]*call
}

// call is one request that is not answered yet.
type call struct {
	id      uint32
	request request
	ctx     context.Context
	cancel  context.CancelCauseFunc
	input   *wire.Inlet
	outlets map[uint8]*wire.Outlet
}

// request is a wire.Request whose arguments are not decoded yet.
type request struct {
	Do   string          `json:"do"`
	Args json.RawMessage `json:"args"`
}

// take handles one frame of the session. It never waits; an error is the host's
// breach of the rules.
func (s *sitting) take(f wire.Frame) error {
	if f.Kind == wire.Call {
		return s.call(f)
	}
	s.mu.Lock()
	c := s.calls[f.ID]
	s.mu.Unlock()
	if c == nil {
		return nil // answered meanwhile
	}
	switch f.Kind {
	case wire.Data:
		return c.input.Push(f.Payload)
	case wire.End:
		c.input.Finish(io.EOF)
	case wire.Credit:
		if o := c.outlets[f.Stream]; o != nil {
			return o.Credited(f.Payload)
		}
	case wire.Cancel:
		c.abandon(context.Canceled)
	case wire.Hello, wire.Welcome, wire.Call, wire.Reply, wire.Lost:
		return fmt.Errorf("a frame of kind %d from the host", f.Kind)
	}
	return nil
}

// call opens one.
func (s *sitting) call(f wire.Frame) error {
	c := &call{
		id:      f.ID,
		input:   wire.NewInlet(s.epoch, f.ID, wire.Input, s.send),
		outlets: map[uint8]*wire.Outlet{},
	}
	for _, stream := range []uint8{wire.Output, wire.Errors} {
		c.outlets[stream] = wire.NewOutlet(s.epoch, f.ID, stream, s.send)
	}
	if err := json.Unmarshal(f.Payload, &c.request); err != nil {
		return fmt.Errorf("no request: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return nil
	case s.calls[f.ID] != nil:
		return fmt.Errorf("a second call %d", f.ID)
	case len(s.calls) == wire.MaxCalls:
		return fmt.Errorf("more than %d calls at once", wire.MaxCalls)
	}
	c.ctx, c.cancel = context.WithCancelCause(s.ctx)
	s.calls[f.ID] = c
	s.open.Go(func() { s.answer(c) })
	return nil
}

// answer carries a call out and replies.
func (s *sitting) answer(c *call) {
	defer c.cancel(context.Canceled)
	var a wire.Answer
	result, err := s.do(c)
	if err != nil {
		a.Error, a.Kind = err.Error(), fault.Of(err).String()
	}
	a.Result = result
	payload, err := json.Marshal(a)
	if err == nil && len(payload) > wire.MaxPayload {
		err = fmt.Errorf("an answer of %d bytes is too long", len(payload))
	}
	if err != nil {
		payload, _ = json.Marshal(wire.Answer{Error: err.Error(), Kind: fault.Internal.String()})
	}
	// First, so that the host may open another as soon as it has this answer.
	s.mu.Lock()
	delete(s.calls, c.id)
	s.mu.Unlock()
	_ = s.send(wire.Frame{Kind: wire.Reply, Epoch: s.epoch, ID: c.id, Payload: payload})
}

// do finds what a call wants.
func (s *sitting) do(c *call) (any, error) {
	switch c.request.Do {
	case wire.Exec:
		return withArgs(c, execute)
	case wire.Put:
		return withArgs(c, put)
	case wire.Get:
		return withArgs(c, get)
	case wire.Load:
		return withArgs(c, load)
	case wire.Clock:
		return now("/"), nil
	case wire.Sample:
		return usage("/")
	case wire.Power:
		if s.agent.Power == nil {
			return nil, fault.New(fault.Unsupported, fault.Agent, "this agent has no machine to end")
		}
		go s.agent.Power()
		return nil, nil
	}
	return nil, fault.New(fault.Unsupported, fault.Agent, "the lab's agent knows no %q", c.request.Do)
}

// withArgs decodes a call's arguments and carries it out.
func withArgs[T any](c *call, do func(*call, T) (any, error)) (any, error) {
	var args T
	if err := json.Unmarshal(c.request.Args, &args); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, fault.Agent, "cannot read the arguments of %s", c.request.Do)
	}
	return do(c, args)
}

// abandon ends a call whose answer nobody waits for.
func (c *call) abandon(why error) {
	c.cancel(why)
	c.input.Finish(why)
	for _, o := range c.outlets {
		o.Fail(why)
	}
}

// end abandons all calls. A nil sitting has none.
func (s *sitting) end() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.cancel(wire.ErrClosed)
	for _, c := range s.calls {
		c.abandon(wire.ErrClosed)
	}
}

// lose ends the session and tells the host why.
func (s *sitting) lose(why error) {
	s.mu.Lock()
	over := s.over
	s.mu.Unlock()
	if over {
		return
	}
	s.end()
	_ = s.send(wire.Frame{Kind: wire.Lost, Epoch: s.epoch, Payload: []byte(why.Error())})
}
