package qmp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

const (
	// defaultTimeout bounds a command whose context has no deadline.
	defaultTimeout = 60 * time.Second
	// maxUnanswered bounds the commands that QEMU has not answered, including those whose callers gave up.
	maxUnanswered = 128
)

// Session is one connection to a monitor. Its methods may be called from any
// goroutine.
type Session struct {
	conn      net.Conn
	log       *slog.Logger
	greeting  Greeting
	queue     *eventQueue
	events    chan Event
	writeTurn chan struct{} // holds a token while a line is written

	mu     sync.Mutex
	calls  map[uint64]*call
	lastID uint64
	// answered is when QEMU last answered anything.
	answered time.Time
	reason   error // set before done is closed

	strayLogged sync.Once // QEMU's first unexpected message was logged

	done      chan struct{} // closed: the session is lost or closed
	closed    chan struct{} // closed: the owner closed the session
	closeOnce sync.Once
}

// call is a command that QEMU has not answered yet.
type call struct {
	command string
	sent    time.Time
	answer  chan *message // room for the one answer
}

// Dial connects to the monitor at a socket path and starts a session.
func Dial(ctx context.Context, path string, log *slog.Logger) (*Session, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fault.Wrap(err, kindOf(err), fault.Monitor, "cannot reach the monitor")
	}
	return New(ctx, conn, log)
}

// New starts a session on conn: it reads QEMU's greeting and negotiates capabilities. It owns conn from here on, also
// after an error.
func New(ctx context.Context, conn net.Conn, log *slog.Logger) (*Session, error) {
	s := &Session{
		conn:      conn,
		log:       log,
		queue:     newEventQueue(),
		events:    make(chan Event),
		writeTurn: make(chan struct{}, 1),
		calls:     make(map[uint64]*call),
		done:      make(chan struct{}),
		closed:    make(chan struct{}),
	}
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	lines, err := s.readGreeting(ctx)
	if err != nil {
		_ = conn.Close()
		return nil, fault.Wrap(err, kindOf(err), fault.Monitor, "QEMU did not greet on its monitor")
	}
	go s.read(lines)
	go s.queue.deliver(s.events, s.closed)
	if err := s.Execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// readGreeting waits for QEMU's first line; a cancelled context ends the wait
// by an expired deadline on the connection.
func (s *Session) readGreeting(ctx context.Context) (*lineReader, error) {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) })
	lines := newLineReader(s.conn, MaxLine, s.done)
	line, err := lines.next()
	if !stop() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	m, err := decode(line)
	if err != nil {
		return nil, err
	}
	if m.Greeting == nil {
		return nil, fmt.Errorf("it began with %s", excerpt(line))
	}
	s.greeting = *m.Greeting
	return lines, nil
}

// Greeting returns QEMU's first message.
func (s *Session) Greeting() Greeting { return s.greeting }

// Events returns QEMU's events, in wire order. The channel closes after the
// last event once the session is lost, and at once when the owner closes it.
func (s *Session) Events() <-chan Event { return s.events }

// NewestEvent returns the number of the newest event that QEMU has sent. When a command has its answer, the events
// before the answer are counted, but perhaps not delivered: a consumer that needs them reads up to this number. Lost
// events are counted and never delivered.
func (s *Session) NewestEvent() uint64 { return s.queue.newest() }

// Done is closed when the session is lost or closed; Err then returns the reason.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is the reason why the session ended, or nil while it lasts.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// Close ends the session and everything that waits on it. QEMU runs on.
func (s *Session) Close() {
	s.closeOnce.Do(func() { close(s.closed) })
	s.endWith(ErrClosed)
}

// Execute sends one command, waits for its answer and decodes it into the last argument, unless that is nil. Commands
// may overlap. A context without a deadline gets one of a minute. A command is not undone when its caller gives up:
// QEMU may still execute it.
func (s *Session) Execute(ctx context.Context, command string, args, into any) error {
	return s.execute(ctx, command, args, into, nil)
}

// ExecuteFD is Execute with a file descriptor for QEMU, for getfd and add-fd. The caller still owns the file.
func (s *Session) ExecuteFD(ctx context.Context, file *os.File, command string, args, into any) error {
	if _, ok := s.conn.(*net.UnixConn); !ok {
		return fault.New(fault.Unsupported, fault.Monitor, "cannot send %s: this monitor's connection cannot carry files", command)
	}
	return s.execute(ctx, command, args, into, file)
}

func (s *Session) execute(ctx context.Context, command string, args, into any, file *os.File) error {
	err := s.roundTrip(ctx, command, args, into, file)
	var refused *Error
	if err == nil || errors.As(err, &refused) {
		return err
	}
	return &NoAnswer{err}
}

// roundTrip sends a command and waits for its answer.
func (s *Session) roundTrip(ctx context.Context, command string, args, into any, file *os.File) error {
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	id, c, err := s.register(command)
	if err != nil {
		return err
	}
	line, err := encode(command, args, id)
	if err != nil {
		s.forget(id)
		return fault.Wrap(err, fault.Internal, fault.Monitor, "cannot encode the arguments of %s", command)
	}
	if bytes.ContainsFunc(line, isNoncharacter) { // QEMU would not say which command it could not read
		s.forget(id)
		return fault.Wrap(&Error{ClassGeneric, "it holds a Unicode noncharacter"}, fault.Invalid, fault.Monitor, "cannot send %s", command)
	}
	if err := s.send(ctx, line, file); err != nil {
		s.forget(id)
		return s.noAnswer(ctx, err, c)
	}
	select {
	case m := <-c.answer:
		return decodeAnswer(m, command, into)
	case <-ctx.Done():
		return s.noAnswer(ctx, context.Cause(ctx), c)
	case <-s.done:
	}
	select { // an answer that came before the loss still counts
	case m := <-c.answer:
		return decodeAnswer(m, command, into)
	default:
		return s.noAnswer(ctx, s.Err(), c)
	}
}

func decodeAnswer(m *message, command string, into any) error {
	if m.Error != nil {
		return refusalError(m.Error, command)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(m.Return, into); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Monitor, "cannot understand QEMU's answer to %s", command)
	}
	return nil
}

// noAnswer explains why a command got no answer, and how long it waited.
func (s *Session) noAnswer(ctx context.Context, err error, c *call) error {
	waited := time.Since(c.sent).Round(time.Millisecond)
	switch {
	case s.Err() != nil:
		return fault.Wrap(s.Err(), fault.Failed, fault.Monitor, "lost the monitor after waiting %s for %s", waited, c.command)
	case errors.Is(ctx.Err(), context.Canceled):
		return fault.Wrap(err, fault.Aborted, fault.Monitor, "stopped waiting for %s after %s", c.command, waited)
	}
	return fault.Wrap(err, fault.Timeout, fault.Monitor, "QEMU did not answer %s within %s", c.command, waited)
}

// register makes room for the answer to a command.
func (s *Session) register(command string) (uint64, *call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason != nil {
		return 0, nil, fault.Wrap(s.reason, fault.Failed, fault.Monitor, "cannot send %s", command)
	}
	if len(s.calls) >= maxUnanswered {
		oldest := s.oldest()
		return 0, nil, fault.New(fault.Busy, fault.Monitor,
			"cannot send %s: QEMU has not answered %d commands, %s among them for %s",
			command, len(s.calls), oldest.command, time.Since(oldest.sent).Round(time.Millisecond))
	}
	s.lastID++
	c := &call{command: command, sent: time.Now(), answer: make(chan *message, 1)}
	s.calls[s.lastID] = c
	return s.lastID, c, nil
}

// LongestUnanswered returns the oldest command without an answer, and since when QEMU has answered no command at all
// while that one waited. The command is empty if QEMU has answered all.
func (s *Session) LongestUnanswered() (command string, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.oldest()
	if c == nil {
		return "", time.Time{}
	}
	if s.answered.After(c.sent) {
		return c.command, s.answered
	}
	return c.command, c.sent
}

// oldest finds the command that has waited longest; the caller holds mu.
func (s *Session) oldest() *call {
	var first *call
	for _, c := range s.calls {
		if first == nil || c.sent.Before(first.sent) {
			first = c
		}
	}
	return first
}

func (s *Session) forget(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, id)
}

// send writes one line when no other is being written. A part of a line cannot be withdrawn, so a write that fails in
// the middle ends the session.
func (s *Session) send(ctx context.Context, line []byte, file *os.File) error {
	select {
	case s.writeTurn <- struct{}{}:
		defer func() { <-s.writeTurn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.done:
		return s.Err()
	}
	deadline, _ := ctx.Deadline()
	if err := s.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	n, err := s.write(line, file)
	if err != nil && (n > 0 || !errors.Is(err, os.ErrDeadlineExceeded)) {
		s.endWith(fmt.Errorf("cannot write to the monitor: %w", err))
	}
	return err
}

// write sends a line and the file that travels with its first byte.
func (s *Session) write(line []byte, file *os.File) (int, error) {
	if file == nil {
		return s.conn.Write(line)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var sent int
	var sendErr error
	// Control keeps the descriptor open while it is on its way.
	err = raw.Control(func(fd uintptr) {
		sent, _, sendErr = s.conn.(*net.UnixConn).WriteMsgUnix(line, unix.UnixRights(int(fd)), nil)
	})
	if err = errors.Join(err, sendErr); err != nil || sent == len(line) {
		return sent, err
	}
	rest, err := s.conn.Write(line[sent:])
	return sent + rest, err
}

// read is the session's reader: it ends with the connection.
func (s *Session) read(lines *lineReader) {
	defer s.queue.end()
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("QEMU closed the monitor: %w", err)
		}
		if err != nil {
			s.endWith(err)
			return
		}
		m, err := decode(line)
		if err != nil {
			s.endWith(err)
			return
		}
		if !s.dispatch(m) {
			return
		}
	}
}

// dispatch passes one message on and reports whether the session continues.
func (s *Session) dispatch(m *message) bool {
	switch {
	case m.Event != "":
		s.queue.put(Event{Name: m.Event, Data: m.Data, Time: m.time()})
	case m.Error != nil && m.ID == nil:
		// QEMU could not read which command it was: its caller would wait in vain.
		s.endWith(fmt.Errorf("QEMU could not read a command: %w", m.Error))
		return false
	case m.Return != nil || m.Error != nil:
		s.answer(m)
	default:
		s.strayLogged.Do(func() { s.log.Warn("QEMU greeted in the middle of a session") })
	}
	return true
}

func (s *Session) answer(m *message) {
	id, ok := m.commandID()
	s.mu.Lock()
	c := s.calls[id]
	delete(s.calls, id)
	s.answered = time.Now()
	s.mu.Unlock()
	if !ok || c == nil {
		s.strayLogged.Do(func() { s.log.Warn("QEMU answered a command that was not sent", "id", excerpt(m.ID)) })
		return
	}
	c.answer <- m
}

// endWith ends the session with an error. Only the first error counts.
func (s *Session) endWith(reason error) {
	s.mu.Lock()
	first := s.reason == nil
	if first {
		s.reason = reason
		clear(s.calls)
		close(s.done)
	}
	s.mu.Unlock()
	if first {
		_ = s.conn.Close()
	}
}

func withDefaultTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, defaultTimeout)
}

func kindOf(err error) fault.Kind {
	if k := fault.Of(err); k != fault.Internal {
		return k
	}
	return fault.Failed
}
