// Package qmptest is a scripted QEMU monitor for tests. It fakes the peer at
// the level of messages, and holds both sides to the schema that a real QEMU
// gave: a command it would refuse fails the test, and so does an answer or an
// event of a shape that it would never send.
package qmptest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/schema"
)

// Monitor is a fake QEMU. Expected commands must be sent in the given
// order; standing answers may be used at any time and any number of times.
type Monitor struct {
	t      testing.TB
	schema *schema.Schema
	client net.Conn
	conn   net.Conn

	mu       sync.Mutex
	script   []*Exchange
	standing map[string]Answer
	calls    []Call
	hungUp   bool
	write    sync.Mutex // one line at a time
}

// Call is a command that the monitor was asked.
type Call struct {
	Command   string
	Arguments json.RawMessage // nil when there were none
}

// Answer makes the answer to a command. An error that is, or wraps, a
// *qmp.Error is sent as QEMU's refusal.
type Answer func(arguments json.RawMessage) (any, error)

// Exchange is one expected command and its answer.
type Exchange struct {
	command string
	args    any
	check   bool
	answer  Answer
	mute    bool
	asked   chan struct{}
	before  []emission
	after   []emission
}

type emission struct {
	event string
	data  any
}

// New starts a monitor that greets as QEMU 7.2 does. It is stopped when the
// test ends, which fails if something expected was never asked.
func New(t testing.TB) *Monitor {
	t.Helper()
	client, conn := net.Pipe()
	return Serve(t, client, conn)
}

// Serve is New over a connection of the caller's: conn is QEMU's end of it.
func Serve(t testing.TB, client, conn net.Conn) *Monitor {
	t.Helper()
	m := &Monitor{t: t, schema: Schema(t), client: client, conn: conn, standing: make(map[string]Answer)}
	m.Answer("qmp_capabilities", func(json.RawMessage) (any, error) { return struct{}{}, nil })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.serve()
	}()
	t.Cleanup(func() {
		_ = client.Close() // or a client that does not read would hold it up
		m.Hangup()
		<-ended
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, e := range m.script {
			t.Errorf("the monitor was never asked %s", e.command)
		}
	})
	return m
}

// Conn is the client's end, for qmp.New.
func (m *Monitor) Conn() net.Conn { return m.client }

// Expect adds a command to the script; without more it answers {}.
func (m *Monitor) Expect(command string) *Exchange {
	e := &Exchange{command: command, asked: make(chan struct{}), answer: func(json.RawMessage) (any, error) { return struct{}{}, nil }}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.script = append(m.script, e)
	return e
}

// Answer sets the standing answer to a command.
func (m *Monitor) Answer(command string, answer Answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.standing[command] = answer
}

// With sets the expected arguments, compared as JSON.
func (e *Exchange) With(args any) *Exchange { e.args, e.check = args, true; return e }

// Return sets the answer.
func (e *Exchange) Return(value any) *Exchange {
	e.answer = func(json.RawMessage) (any, error) { return value, nil }
	return e
}

// Refuse answers with an error of QEMU's.
func (e *Exchange) Refuse(class, desc string) *Exchange {
	e.answer = func(json.RawMessage) (any, error) { return nil, &qmp.Error{Class: class, Desc: desc} }
	return e
}

// Silence sends no answer at all.
func (e *Exchange) Silence() *Exchange { e.mute = true; return e }

// Before sends an event ahead of the answer.
func (e *Exchange) Before(event string, data any) *Exchange {
	e.before = append(e.before, emission{event, data})
	return e
}

// Then sends an event after the answer.
func (e *Exchange) Then(event string, data any) *Exchange {
	e.after = append(e.after, emission{event, data})
	return e
}

// Asked is closed once the command has come.
func (e *Exchange) Asked() <-chan struct{} { return e.asked }

// Calls lists the commands so far, qmp_capabilities included.
func (m *Monitor) Calls() []Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.calls)
}

// Emit sends an event now. It waits until the client has read it.
func (m *Monitor) Emit(event string, data any) {
	m.t.Helper()
	line, err := m.event(event, data)
	if err != nil {
		m.t.Error(err)
		return
	}
	m.Raw(line)
}

// Raw sends bytes unchanged, to test messages that no QEMU would send.
func (m *Monitor) Raw(line string) {
	m.write.Lock()
	defer m.write.Unlock()
	// A client that has gone away is no fault of the monitor's.
	_, _ = io.WriteString(m.conn, line)
}

// Hangup closes the connection, as a QEMU that ends does, after the pending
// messages.
func (m *Monitor) Hangup() {
	m.mu.Lock()
	m.hungUp = true
	m.mu.Unlock()
	m.write.Lock()
	defer m.write.Unlock()
	_ = m.conn.Close()
}

const greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "qmptest"}, "capabilities": ["oob"]}}` + "\r\n"

func (m *Monitor) serve() {
	m.Raw(greeting)
	in := bufio.NewReader(m.conn)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		if err := m.take(line); err != nil {
			m.mu.Lock()
			expected := m.hungUp
			m.mu.Unlock()
			if !expected {
				m.t.Errorf("the monitor was asked what it should not: %v", err)
			}
			_ = m.conn.Close()
			return
		}
	}
}

// take answers one line.
func (m *Monitor) take(line []byte) error {
	var q struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments"`
		ID        json.RawMessage `json:"id"`
	}
	if err := json.Unmarshal(line, &q); err != nil {
		return err
	}
	if err := m.schema.CheckArguments(q.Execute, q.Arguments); err != nil {
		return err
	}
	e, err := m.next(Call{q.Execute, q.Arguments})
	if err != nil {
		return err
	}
	var reply string
	if !e.mute {
		if reply, err = m.reply(q.Execute, q.Arguments, q.ID, e.answer); err != nil {
			return err
		}
	}
	before, err := m.events(e.before)
	if err != nil {
		return err
	}
	after, err := m.events(e.after)
	if err != nil {
		return err
	}
	if lines := before + reply + after; lines != "" {
		m.Raw(lines) // at once, so that nothing comes between
	}
	return nil
}

func (m *Monitor) events(list []emission) (string, error) {
	var lines strings.Builder
	for _, e := range list {
		line, err := m.event(e.event, e.data)
		if err != nil {
			return "", err
		}
		lines.WriteString(line)
	}
	return lines.String(), nil
}

// next finds the answer to a call: the script goes before standing answers.
func (m *Monitor) next(c Call) (*Exchange, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, c)
	if len(m.script) > 0 && m.script[0].command == c.Command {
		e := m.script[0]
		m.script = m.script[1:]
		close(e.asked)
		if e.check {
			return e, sameJSON(c, e.args)
		}
		return e, nil
	}
	if answer := m.standing[c.Command]; answer != nil {
		return &Exchange{answer: answer}, nil
	}
	if len(m.script) > 0 {
		return nil, fmt.Errorf("%s %s, when %s was expected", c.Command, c.Arguments, m.script[0].command)
	}
	return nil, fmt.Errorf("%s %s, when nothing was expected", c.Command, c.Arguments)
}

func sameJSON(c Call, want any) error {
	text, err := json.Marshal(want)
	if err != nil {
		return err
	}
	var got, wanted any
	if c.Arguments != nil {
		err = json.Unmarshal(c.Arguments, &got)
	}
	if err := errors.Join(err, json.Unmarshal(text, &wanted)); err != nil {
		return err
	}
	if !reflect.DeepEqual(got, wanted) {
		return fmt.Errorf("%s with %s, when %s was expected", c.Command, c.Arguments, text)
	}
	return nil
}

func (m *Monitor) reply(command string, args, id json.RawMessage, answer Answer) (string, error) {
	value, err := answer(args)
	var refusal *qmp.Error
	switch {
	case errors.As(err, &refusal):
		return encode(map[string]any{"error": refusal, "id": id})
	case err != nil:
		return "", err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	if err := m.schema.CheckReturn(command, text); err != nil {
		return "", fmt.Errorf("the scripted answer is not QEMU's: %w", err)
	}
	return encode(map[string]any{"return": json.RawMessage(text), "id": id})
}

func (m *Monitor) event(event string, data any) (string, error) {
	body := map[string]any{"event": event, "timestamp": map[string]int{"seconds": 1700000000, "microseconds": 250000}}
	var text []byte
	if data != nil {
		var err error
		if text, err = json.Marshal(data); err != nil {
			return "", err
		}
		body["data"] = json.RawMessage(text)
	}
	if err := m.schema.CheckEvent(event, text); err != nil {
		return "", fmt.Errorf("the scripted event is not QEMU's: %w", err)
	}
	return encode(body)
}

func encode(v any) (string, error) {
	line, err := json.Marshal(v)
	return string(line) + "\r\n", err
}
