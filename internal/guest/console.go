package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// ConsoleOptions say how a console is shared among clients.
type ConsoleOptions struct {
	// Force ends the sessions of other clients.
	Force bool
	// Safe asks for exclusive use: opening fails if another client has the console, and later clients are
	// refused.
	Safe bool
}

// OpenConsole opens a serial, parallel or paravirtual console: the first one, or the one with that alias.
// Up to maxSessions clients may share it; each sees all output and may type.
func (g *Guest) OpenConsole(ctx context.Context, sc scope.Scope, alias string, o ConsoleOptions) (io.ReadWriteCloser, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	return g.openChar(ctx, alias, o, func(s *device.Set) []*device.Char {
		return append(append(append([]*device.Char{}, s.Serials...), s.Consoles...), s.Parallels...)
	})
}

// OpenChannel opens the host's end of a channel: the first one, or the one with that alias or name. The
// channel of the guest agent is refused: its client could run anything in the guest as root, and would take
// the connection from the daemon.
func (g *Guest) OpenChannel(ctx context.Context, sc scope.Scope, name string, o ConsoleOptions) (io.ReadWriteCloser, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	return g.openChar(ctx, name, o, func(s *device.Set) []*device.Char { return s.Channels })
}

// openChar opens a character device of those that of returns, except for the agent's channel.
func (g *Guest) openChar(ctx context.Context, name string, o ConsoleOptions, of func(*device.Set) []*device.Char) (io.ReadWriteCloser, error) {
	r, v := g.live.Load(), g.View()
	if r == nil || v.Active == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	c := pickChar(of(&v.Active.Devices), name)
	if c == nil {
		return nil, fault.New(fault.NotFound, fault.Device, "cannot find console device '%s'", name)
	}
	if IsAgents(c.Name) {
		return nil, fault.New(fault.Unsupported, fault.Device, "channel %s belongs to the guest agent, which only the daemon may use: send it commands (virsh qemu-agent-command), or name another channel", c.Alias)
	}
	return r.consoles.open(ctx, c, o, r.openBackend)
}

// pickChar finds a character device by alias or name. An empty name means the first device.
func pickChar(all []*device.Char, name string) *device.Char {
	for _, c := range all {
		if name == "" || c.Alias == name || c.Name == name {
			return c
		}
	}
	return nil
}

// consoles holds the open back ends of a running guest, by device alias.
type consoles struct {
	mu      sync.Mutex
	byAlias map[string]*console
}

// console is one open back end. One goroutine reads it and copies the output to every session. Another
// writes the input of all sessions, because a guest may accept no input and block the writer.
type console struct {
	back  io.ReadWriteCloser
	typed chan typed
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

// typed is the input of one Write.
type typed struct {
	text []byte
	done chan error // buffered: holds the one answer
}

// sessionQueue bounds how many pieces of output are queued for a slow client, each of at most 16 KiB.
const sessionQueue = 256

// open adds a session to the console of a character device. It opens the back end if no session is open.
func (cs *consoles) open(
	ctx context.Context, c *device.Char, o ConsoleOptions, openBackend func(context.Context, *device.Char) (io.ReadWriteCloser, error),
) (io.ReadWriteCloser, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	con := cs.byAlias[c.Alias]
	if con != nil && !o.Force && con.isFull() {
		return nil, fault.New(fault.NoCapacity, fault.Domain, "%d clients have %s %s open; end one session, or force them out", maxSessions, c.Role, c.Alias)
	}
	if con != nil && !con.admit(o) {
		return nil, fault.New(fault.WrongState, fault.Domain, "Active console session exists for this domain")
	}
	if con == nil || con.isOver() {
		back, err := openBackend(ctx, c)
		if err != nil {
			return nil, err
		}
		con = &console{back: back, sessions: map[*session]bool{}, typed: make(chan typed), gone: make(chan struct{})}
		if cs.byAlias == nil {
			cs.byAlias = map[string]*console{}
		}
		cs.byAlias[c.Alias] = con
		go con.distribute()
		go con.typeOn()
	}
	return con.join(o), nil
}

func (c *console) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// maxSessions bounds the sessions of one console. Each takes memory of the daemon for as long as its client
// stays.
const maxSessions = 64

func (c *console) isFull() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sessions) >= maxSessions
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

// distribute copies output to the sessions until the back end ends. Closing the last session closes the
// back end.
func (c *console) distribute() {
	buffer := make([]byte, 16<<10)
	for {
		n, err := c.back.Read(buffer)
		if n > 0 {
			c.give(append([]byte(nil), buffer[:n]...))
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

// typeOn writes the input of the sessions until the back end ends.
func (c *console) typeOn() {
	for {
		select {
		case t := <-c.typed:
			_, err := c.back.Write(t.text)
			t.done <- err
		case <-c.gone:
			return
		}
	}
}

// give queues a piece of output for every session. A full queue drops its oldest piece.
func (c *console) give(piece []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sessions {
		for !s.offer(piece) {
			select {
			case <-s.queue: // drop the oldest
			default:
			}
		}
	}
}

// offer queues a piece of output, and reports false if the queue is full.
func (s *session) offer(piece []byte) bool {
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
	t := typed{bytes.Clone(p), make(chan error, 1)}
	select {
	case s.of.typed <- t:
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

// openBackend opens the host's end of a character device.
func (r *run) openBackend(ctx context.Context, c *device.Char) (io.ReadWriteCloser, error) {
	b := c.Backend
	open := func(do func() (io.ReadWriteCloser, error)) (io.ReadWriteCloser, error) {
		return fsguard.Do(ctx, b.Path, do, func(b io.ReadWriteCloser) { _ = b.Close() })
	}
	switch {
	case b.Type == "pty" && b.Path != "":
		return open(func() (io.ReadWriteCloser, error) { return r.openPTY(b.Path) })
	case b.Type == "dev" && b.Path != "":
		return open(func() (io.ReadWriteCloser, error) { return openTerminal(b.Path) })
	case b.Listens():
		return open(func() (io.ReadWriteCloser, error) {
			conn, err := r.dial(ctx, b.Path)
			return conn, fault.Wrap(err, fault.Of(err), fault.Device, "cannot open %s %s", c.Role, c.Alias)
		})
	}
	return nil, fault.New(fault.Unsupported, fault.Device, "character device %s is not using a PTY or a UNIX socket", c.Alias)
}

// dial connects to a socket of the guest. In QEMU's own directory a compromised QEMU could replace a socket
// by a link to any other, and the daemon connects as root. There, dial accepts only a peer that runs as
// QEMU's user.
func (r *run) dial(ctx context.Context, path string) (net.Conn, error) {
	conn, err := connect(ctx, path)
	if err != nil {
		return nil, fault.Wrap(err, failure(err), fault.Device, "cannot connect to %s", path)
	}
	if r.User == nil || filepath.Dir(path) != r.ownPath() {
		return conn, nil
	}
	if peer := listener.PeerOf(conn); peer.Unknown != nil || peer.UID != r.User.UID {
		_ = conn.Close()
		return nil, fault.New(fault.Denied, fault.Device, "%s leads to a socket that is not the guest's: its QEMU has replaced it", path)
	}
	return conn, nil
}

// connect connects to the socket at path. safepath refuses links of untrusted owners: with one, a user who
// may write to the folder could direct the daemon, as root, to any other socket.
func connect(ctx context.Context, path string) (net.Conn, error) {
	at, err := safepath.Open(path)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	return connectTo(ctx, at)
}

// The device major numbers of the slave ends of pseudo-terminals: the first one, and the one after the
// last.
const firstPTYMajor, endPTYMajor = 136, 144

// openPTY opens the pty of a character device. QEMU named its path, and a compromised QEMU may lie. The
// path must be a pseudo-terminal that QEMU's user owns: not another terminal, and not a device that acts on
// being opened.
func (r *run) openPTY(path string) (io.ReadWriteCloser, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Device, "cannot open %s", path)
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor has nothing to lose
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Device, "cannot open %s", path)
	}
	major := unix.Major(st.Rdev)
	isPTY := st.Mode&unix.S_IFMT == unix.S_IFCHR && major >= firstPTYMajor && major < endPTYMajor
	if !isPTY || r.User != nil && st.Uid != r.User.UID {
		return nil, fault.New(fault.Denied, fault.Device, "%s is not a pseudo-terminal of this guest, although its QEMU says so", path)
	}
	return openTTY(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// openTerminal opens the terminal at a path of the definition. safepath refuses a link that a user who may
// write to the folder could put there.
func openTerminal(path string) (io.ReadWriteCloser, error) {
	at, err := safepath.Open(path)
	if err != nil {
		return nil, fault.Wrap(err, failure(err), fault.Device, "cannot open %s", path)
	}
	defer at.Close()
	return openTTY(fmt.Sprintf("/proc/self/fd/%d", at.Fd()))
}

// openTTY opens a terminal without making it the daemon's controlling terminal. It is non-blocking, so that
// Close can interrupt a Read.
func openTTY(path string) (io.ReadWriteCloser, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Device, "cannot open %s", path)
	}
	if err := makeRaw(fd); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), path), nil
}

// makeRaw sets the terminal to raw mode, so that the line discipline changes no byte in either direction.
func makeRaw(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Device, "cannot set up the console")
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	return fault.Wrap(unix.IoctlSetTermios(fd, unix.TCSETS, t), fault.Failed, fault.Device, "cannot set up the console")
}

// readBack reads what QEMU chose on its own: the ptys of character devices.
func (l *launching) readBack(ctx context.Context) error {
	ptys, err := findPTYs(ctx, l.run.session.Load())
	if err != nil {
		return err
	}
	setPTYs(l.run.def, ptys)
	return l.describe()
}

// findPTYs asks QEMU which ptys it made, by the names of its character devices.
func findPTYs(ctx context.Context, s *qmp.Session) (map[string]string, error) {
	var chardevs []struct{ Label, Filename string }
	if err := s.Execute(ctx, "query-chardev", nil, &chardevs); err != nil {
		return nil, err
	}
	ptys := map[string]string{}
	for _, c := range chardevs {
		if path, ok := strings.CutPrefix(c.Filename, "pty:"); ok && isPTY(path) { // a compromised QEMU may return any path
			ptys[c.Label] = path
		}
	}
	return ptys, nil
}

// isPTY reports whether the kernel could have given that path to a pseudo-terminal. Clients see the path
// and the daemon looks it up, so a compromised QEMU could otherwise direct both elsewhere, for example to a
// network mount.
func isPTY(path string) bool {
	number, is := strings.CutPrefix(path, "/dev/pts/")
	_, err := strconv.ParseUint(number, 10, 31)
	return is && err == nil
}

// setPTY records the pty of a character device, if it has one.
func setPTY(c *device.Char, ptys map[string]string) {
	if path := ptys["char"+c.Alias]; path != "" && c.Backend.Type == "pty" {
		c.Backend.Path = path
	}
}

// setPTYs records the ptys in the definition. A console that stands for the first serial port shares its
// pty.
func setPTYs(def *domain.Definition, ptys map[string]string) {
	for _, group := range [][]*device.Char{def.Devices.Serials, def.Devices.Parallels, def.Devices.Consoles, def.Devices.Channels} {
		for _, c := range group {
			setPTY(c, ptys)
		}
	}
	if len(def.Devices.Consoles) > 0 && len(def.Devices.Serials) > 0 && def.Devices.Consoles[0].TargetType == "serial" {
		first := def.Devices.Consoles[0]
		first.Backend, first.Alias = def.Devices.Serials[0].Backend, def.Devices.Serials[0].Alias
	}
}
