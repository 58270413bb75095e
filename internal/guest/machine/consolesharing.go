package machine

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// ConsoleOptions say how a console is shared among clients.
type ConsoleOptions struct {
	// Force ends the sessions of other clients.
	Force bool
	// Safe asks for exclusive use: opening fails if another client has the console, and later clients are
	// refused.
	Safe bool
}

// Consoles holds the open back ends of a running guest, by device alias.
type Consoles struct {
	mu      sync.Mutex
	byAlias map[string]*console
}

// console is one open back end. One goroutine reads it and copies the output to every session. Another
// writes the input of all sessions, because a guest may accept no input and block the writer.
type console struct {
	back  io.ReadWriteCloser
	input chan inputChunk
	gone  chan struct{} // closed when the back end has ended

	mu       sync.Mutex
	sessions map[*session]bool
	alone    bool
	ended    bool
}

// session is one client's connection to a console.
type session struct {
	of  *console
	out *io.PipeReader
	in  *io.PipeWriter
	// queue holds output that the client has not read. When it is full, the oldest output is dropped, so
	// that a slow client delays no other.
	queue chan []byte
	end   sync.Once
	left  chan struct{} // closed when its client has disconnected
	leave sync.Once
}

// inputChunk is the input of one Write.
type inputChunk struct {
	text []byte
	done chan error // buffered: holds the one answer
}

// sessionQueue bounds how many pieces of output are queued for a slow client, each of at most 16 KiB.
const sessionQueue = 256

// Open adds a session to the console of a character device. It opens the back end if no session is open.
func (cs *Consoles) Open(
	ctx context.Context, c *device.Char, o ConsoleOptions, openBackend func(context.Context, *device.Char) (io.ReadWriteCloser, error),
) (io.ReadWriteCloser, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	con := cs.byAlias[c.Alias]
	if con != nil && !o.Force && con.isFull() {
		return nil, fault.New(fault.NoCapacity, fault.Domain, "%d clients have %s %s open; end one session, or force them out", MaxSessions, c.Role, c.Alias)
	}
	if con != nil && !con.admit(o) {
		return nil, fault.New(fault.WrongState, fault.Domain, "Active console session exists for this domain")
	}
	if con == nil || con.hasEnded() {
		back, err := openBackend(ctx, c)
		if err != nil {
			return nil, err
		}
		con = &console{back: back, sessions: map[*session]bool{}, input: make(chan inputChunk), gone: make(chan struct{})}
		if cs.byAlias == nil {
			cs.byAlias = map[string]*console{}
		}
		cs.byAlias[c.Alias] = con
		go con.copyOutput()
		go con.writeInput()
	}
	return con.join(o), nil
}

func (c *console) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// MaxSessions bounds the sessions of one console. Each takes memory of the daemon for as long as its client
// stays.
const MaxSessions = 64

func (c *console) isFull() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sessions) >= MaxSessions
}

// admit reports whether another session may join. With Force it closes the other sessions first.
func (c *console) admit(o ConsoleOptions) bool {
	c.mu.Lock()
	others := make([]*session, 0, len(c.sessions))
	for s := range c.sessions {
		others = append(others, s)
	}
	alone := c.alone
	c.mu.Unlock()
	if len(others) == 0 {
		return true
	}
	if o.Force {
		for _, s := range others {
			_ = s.Close()
		}
		return true
	}
	return !o.Safe && !alone
}

// join adds a session.
func (c *console) join(o ConsoleOptions) *session {
	s := &session{of: c, queue: make(chan []byte, sessionQueue), left: make(chan struct{})}
	s.out, s.in = io.Pipe()
	c.mu.Lock()
	c.sessions[s] = true
	c.alone = o.Safe
	ended := c.ended
	c.mu.Unlock()
	if ended {
		_ = s.Close()
	}
	go s.deliver()
	return s
}

// copyOutput copies output to the sessions until the back end ends. Closing the last session closes the
// back end.
func (c *console) copyOutput() {
	buffer := make([]byte, 16<<10)
	for {
		n, err := c.back.Read(buffer)
		if n > 0 {
			c.queueOutput(append([]byte(nil), buffer[:n]...))
		}
		if err != nil {
			break
		}
	}
	c.mu.Lock()
	c.ended = true
	all := c.sessions
	c.sessions = map[*session]bool{}
	c.mu.Unlock()
	_ = c.back.Close()
	close(c.gone)
	for s := range all {
		s.finish()
	}
}

// writeInput writes the input of the sessions until the back end ends.
func (c *console) writeInput() {
	for {
		select {
		case t := <-c.input:
			_, err := c.back.Write(t.text)
			t.done <- err
		case <-c.gone:
			return
		}
	}
}

// queueOutput queues a piece of output for every session. A full queue drops its oldest piece.
func (c *console) queueOutput(piece []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sessions {
		for !s.tryQueue(piece) {
			select {
			case <-s.queue: // drop the oldest
			default:
			}
		}
	}
}

// tryQueue queues a piece of output, and reports false if the queue is full.
func (s *session) tryQueue(piece []byte) bool {
	select {
	case s.queue <- piece:
		return true
	default:
		return false
	}
}

// deliver moves output from a session's queue to its reader.
func (s *session) deliver() {
	for piece := range s.queue {
		if _, err := s.in.Write(piece); err != nil {
			return
		}
	}
	_ = s.in.Close() // end of the console
}

// Read reads the guest's output.
func (s *session) Read(p []byte) (int, error) { return s.out.Read(p) }

// Write sends input to the guest. It returns when the session is closed, even if the guest has not accepted
// all input: other clients may keep the console open for any time.
func (s *session) Write(p []byte) (int, error) {
	t := inputChunk{bytes.Clone(p), make(chan error, 1)}
	select {
	case s.of.input <- t:
	case <-s.left:
		return 0, io.ErrClosedPipe
	case <-s.of.gone:
		return 0, io.ErrClosedPipe
	}
	select {
	case err := <-t.done:
		if err != nil {
			return 0, err
		}
		return len(p), nil
	case <-s.left:
		return 0, io.ErrClosedPipe
	}
}

// Close ends the session. The last session closes the back end.
func (s *session) Close() error {
	s.leave.Do(func() { close(s.left) })
	s.of.mu.Lock()
	present := s.of.sessions[s]
	delete(s.of.sessions, s)
	last := present && len(s.of.sessions) == 0
	s.of.ended = s.of.ended || last
	s.of.mu.Unlock()
	s.finish()
	_ = s.out.Close()
	if last {
		return s.of.back.Close()
	}
	return nil
}

// finish ends the session's output. A slow reader still gets the queued output, unless its client has
// disconnected.
func (s *session) finish() {
	s.end.Do(func() { close(s.queue) })
}

// Relays connect a guest's QEMU to sockets of the host. QEMU may connect to a relay any number of times,
// and each time the daemon connects to the socket. The next daemon makes the relays again; a connection
// ends with the daemon that made it.
type Relays struct {
	Mu      sync.Mutex
	ByAlias map[string]*Relay // by alias of the device
}

// Relay is the relay of one device.
type Relay struct {
	Listener net.Listener
	Path     string
	Cancel   context.CancelCauseFunc
	Done     chan struct{} // closed when the relay has ended
}

// OpenScreenshots counts the bytes of a guest's pictures that are still open.
type OpenScreenshots struct{ Bytes atomic.Int64 }
