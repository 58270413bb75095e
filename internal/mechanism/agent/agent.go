// Package agent holds one session with the agent inside a guest, over the
// socket of its channel.
//
// The agent answers one command at a time and its answers carry no ids, so
// a late answer could be mistaken for that of another command. Every command is
// therefore preceded by a synchronisation (guest-sync-delimited): a byte that no JSON contains resets
// the agent's parser, the agent has to return a random number, and everything before
// that number is discarded. It also proves that the agent is running
// before the command is sent: without an agent no command is lost.
//
// The guest is hostile: its messages are bounded in size and every wait has a
// deadline. A session has no goroutine of its own. This package holds the
// protocol. It does not know the meaning of single commands.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

const (
	// MaxAnswer bounds one answer, in bytes; reading files gives big ones.
	MaxAnswer = 16 << 20
	// defaultTimeout bounds a command whose context has no deadline.
	defaultTimeout = 30 * time.Second
	// syncPatience bounds the time that a running agent may take to answer a synchronisation.
	syncPatience = 5 * time.Second
	// orderPatience is how long Order waits for a refusal.
	orderPatience = 2 * time.Second
)

// Error is a refusal by the agent, in its own words.
type Error struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *Error) Error() string { return e.Desc }

// Session is one connection to an agent. Its methods may be called from any
// goroutine; commands take turns.
type Session struct {
	conn net.Conn
	in   *reader
	turn chan struct{} // holds the token of the command that may use the agent
}

// New makes a session of a connection to the agent's channel, which it owns from here on.
// Whether an agent is there shows only when it is asked something.
func New(conn net.Conn) *Session {
	return &Session{conn: conn, in: newReader(conn), turn: make(chan struct{}, 1)}
}

// Close ends the session and the command that is waiting.
func (s *Session) Close() { _ = s.conn.Close() }

// Execute sends one command and waits for its answer, which is decoded into
// into unless that is nil. A context without a deadline gets one of half a
// minute. An agent that does not answer is fault.Unresponsive; the error says
// whether the command was sent.
func (s *Session) Execute(ctx context.Context, command string, args, into any) error {
	return s.ExecuteIf(ctx, func() error { return nil }, command, args, into)
}

// ExecuteIf is Execute for a command that may have to wait long for another one. When its turn has come, it is
// sent only if allowed returns nil. An error of allowed is returned as it is, and leaves the session usable.
func (s *Session) ExecuteIf(ctx context.Context, allowed func() error, command string, args, into any) error {
	ctx, cancel := context.WithTimeout(ctx, remaining(ctx))
	defer cancel()
	return s.inTurn(ctx, command, func() error {
		if err := allowed(); err != nil {
			return err
		}
		if err := s.send(ctx, command, args); err != nil {
			return err
		}
		return s.answer(ctx, command, into)
	})
}

// Order sends a command that the agent does not answer if it succeeds:
// guest-shutdown and guest-suspend-*. It waits orderPatience for a refusal; silence
// and the loss of the channel count as success.
func (s *Session) Order(ctx context.Context, command string, args any) error {
	ctx, cancel := context.WithTimeout(ctx, remaining(ctx))
	defer cancel()
	return s.inTurn(ctx, command, func() error {
		if err := s.send(ctx, command, args); err != nil {
			return err
		}
		waiting, cancel := context.WithTimeout(ctx, orderPatience)
		defer cancel()
		err := s.answer(waiting, command, nil)
		var refusal *Error
		if errors.As(err, &refusal) || errors.Is(ctx.Err(), context.Canceled) {
			return err
		}
		return nil
	})
}

func remaining(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return defaultTimeout
}

// inTurn runs a command when no other one is under way.
func (s *Session) inTurn(ctx context.Context, command string, do func() error) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
		return do()
	case <-ctx.Done():
		return fault.Wrap(context.Cause(ctx), fault.Busy, fault.Agent,
			"cannot send %s: the guest agent is still busy with another command", command)
	}
}

// send proves that the agent is there and sends a command.
func (s *Session) send(ctx context.Context, command string, args any) error {
	line, err := encode(command, args)
	if err != nil {
		return fault.Wrap(err, fault.Internal, fault.Agent, "cannot encode the arguments of %s", command)
	}
	syncing, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	began := time.Now()
	err = s.withDeadline(syncing, s.sync)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(ctx.Err(), context.Canceled):
		return fault.Wrap(context.Cause(ctx), fault.Aborted, fault.Agent, "%s was not sent", command)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fault.New(fault.Unresponsive, fault.Agent,
			"the guest agent did not answer within %s, so %s was not sent; is an agent running in the guest?",
			time.Since(began).Round(time.Millisecond), command)
	case err != nil:
		return fault.Wrap(err, fault.Failed, fault.Agent, "cannot talk to the guest agent, so %s was not sent", command)
	}
	err = s.withDeadline(ctx, func() error {
		_, err := s.conn.Write(line)
		return err
	})
	return s.explain(ctx, err, command, began)
}

// answer waits for the answer to the command that was sent last.
func (s *Session) answer(ctx context.Context, command string, into any) error {
	began := time.Now()
	var line []byte
	err := s.withDeadline(ctx, func() (err error) {
		line, err = s.in.line(MaxAnswer)
		return err
	})
	if err != nil {
		return s.explain(ctx, err, command, began)
	}
	var reply struct {
		Return json.RawMessage `json:"return"`
		Error  *Error          `json:"error"`
	}
	err = json.Unmarshal(line, &reply)
	if err == nil && reply.Return == nil && reply.Error == nil {
		err = errors.New("neither an answer nor an error")
	}
	if err == nil && reply.Error == nil && into != nil {
		err = json.Unmarshal(reply.Return, into)
	}
	switch {
	case err != nil:
		return fault.Wrap(err, fault.Failed, fault.Agent, "cannot understand the guest agent's answer to %s", command)
	case reply.Error != nil && reply.Error.Class == "CommandNotFound":
		return fault.Wrap(reply.Error, fault.Unsupported, fault.Agent, "the guest agent does not offer %s", command)
	case reply.Error != nil:
		return fault.Wrap(reply.Error, fault.Failed, fault.Agent, "the guest agent refused %s", command)
	}
	return nil
}

// explain explains why a sent command got no answer; nil stays nil.
func (s *Session) explain(ctx context.Context, err error, command string, began time.Time) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(ctx.Err(), context.Canceled):
		return fault.Wrap(context.Cause(ctx), fault.Aborted, fault.Agent, "stopped waiting for %s", command)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fault.New(fault.Unresponsive, fault.Agent, "the guest agent did not answer %s within %s; it may still carry it out",
			command, time.Since(began).Round(time.Millisecond))
	}
	return fault.Wrap(err, fault.Failed, fault.Agent, "lost the guest agent's answer to %s", command)
}

// withDeadline lets do use the connection until the context ends, which it then
// sees as os.ErrDeadlineExceeded.
func (s *Session) withDeadline(ctx context.Context, do func() error) error {
	if err := s.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(expired)
		// Fails only on a connection that is closed, which ends do as well.
		_ = s.conn.SetDeadline(time.Unix(1, 0))
	})
	err := do()
	if !stop() {
		<-expired // so that it cannot hit the next one
	}
	return err
}

// sync makes sure that the next message read answers the next one written.
func (s *Session) sync() error {
	id := rand.Int64N(1 << 53) // exact in any JSON
	line, err := encode("guest-sync-delimited", map[string]int64{"id": id})
	if err != nil {
		return err
	}
	if _, err := s.conn.Write(append([]byte{delimiter}, line...)); err != nil {
		return err
	}
	return s.in.skipTo(fmt.Appendf(nil, `{"return":%d}`, id))
}

// encode makes the line that asks for a command. Arguments that are nil of
// whatever type are none.
func encode(command string, args any) ([]byte, error) {
	encoded, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	if string(encoded) == "null" {
		encoded = nil
	}
	line, err := json.Marshal(struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments,omitempty"`
	}{command, encoded})
	return append(line, '\n'), err
}
