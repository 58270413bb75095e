package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// OpenConsole opens a serial, parallel or paravirtual console: the first one, or the one with that alias.
// Up to machine.MaxSessions clients may share it; each sees all output and may type.
func OpenConsole(ctx context.Context, g *machine.Guest, sc scope.Scope, alias string, o machine.ConsoleOptions) (io.ReadWriteCloser, error) {
	if err := sc.Authorize(g.UUID()); err != nil {
		return nil, err
	}
	return openChar(ctx, g, alias, o, func(s *device.Set) []*device.Char {
		return append(append(append([]*device.Char{}, s.Serials...), s.Consoles...), s.Parallels...)
	})
}

// OpenChannel opens the host's end of a channel: the first one, or the one with that alias or name. The
// channel of the guest agent is refused: its client could run anything in the guest as root, and would take
// the connection from the daemon.
func OpenChannel(ctx context.Context, g *machine.Guest, sc scope.Scope, name string, o machine.ConsoleOptions) (io.ReadWriteCloser, error) {
	if err := sc.Authorize(g.UUID()); err != nil {
		return nil, err
	}
	return openChar(ctx, g, name, o, func(s *device.Set) []*device.Char { return s.Channels })
}

// openChar opens a character device of those that of returns, except for the agent's channel.
func openChar(ctx context.Context, g *machine.Guest, name string, o machine.ConsoleOptions, of func(*device.Set) []*device.Char) (io.ReadWriteCloser, error) {
	r, v := g.Live.Load(), g.View()
	if r == nil || v.Active == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	c := pickChar(of(&v.Active.Devices), name)
	if c == nil {
		return nil, fault.New(fault.NotFound, fault.Device, "cannot find console device '%s'", name)
	}
	if machine.IsAgents(c.Name) {
		return nil, fault.New(fault.Unsupported, fault.Device, "channel %s belongs to the guest agent, which only the daemon may use: send it commands (virsh qemu-agent-command), or name another channel", c.Alias)
	}
	return r.Consoles.Open(ctx, c, o, func(ctx context.Context, c *device.Char) (io.ReadWriteCloser, error) { return openBackend(ctx, r, c) })
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

// openBackend opens the host's end of a character device.
func openBackend(ctx context.Context, r *machine.Instance, c *device.Char) (io.ReadWriteCloser, error) {
	b := c.Backend
	open := func(do func() (io.ReadWriteCloser, error)) (io.ReadWriteCloser, error) {
		return fsguard.Do(ctx, b.Path, do, func(b io.ReadWriteCloser) { _ = b.Close() })
	}
	switch {
	case b.Type == "pty" && b.Path != "":
		return open(func() (io.ReadWriteCloser, error) { return openPTY(r, b.Path) })
	case b.Type == "dev" && b.Path != "":
		return open(func() (io.ReadWriteCloser, error) { return openTerminal(b.Path) })
	case b.Listens():
		return open(func() (io.ReadWriteCloser, error) {
			conn, err := provision.Dial(ctx, r, b.Path)
			return conn, fault.Wrap(err, fault.Of(err), fault.Device, "cannot open %s %s", c.Role, c.Alias)
		})
	}
	return nil, fault.New(fault.Unsupported, fault.Device, "character device %s is not using a PTY or a UNIX socket", c.Alias)
}

// The device major numbers of the slave ends of pseudo-terminals: the first one, and the one after the
// last.
const firstPTYMajor, endPTYMajor = 136, 144

// openPTY opens the pty of a character device. QEMU named its path, and a compromised QEMU may lie. The
// path must be a pseudo-terminal that QEMU's user owns: not another terminal, and not a device that acts on
// being opened.
func openPTY(r *machine.Instance, path string) (io.ReadWriteCloser, error) {
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

// openTerminal opens the terminal at a path of the definition. A user with write access to the folder could
// put a link there; safepath refuses it.
func openTerminal(path string) (io.ReadWriteCloser, error) {
	at, err := safepath.Open(path)
	if err != nil {
		return nil, fault.Wrap(err, machine.Failure(err), fault.Device, "cannot open %s", path)
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

// FindPTYs asks QEMU which ptys it made, by the names of its character devices.
func FindPTYs(ctx context.Context, s *qmp.Session) (map[string]string, error) {
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

// SetPTY records the pty of a character device, if it has one.
func SetPTY(c *device.Char, ptys map[string]string) {
	if path := ptys["char"+c.Alias]; path != "" && c.Backend.Type == "pty" {
		c.Backend.Path = path
	}
}

// SetPTYs records the ptys in the definition. A console that stands for the first serial port shares its
// pty.
func SetPTYs(def *domain.Definition, ptys map[string]string) {
	for _, group := range [][]*device.Char{def.Devices.Serials, def.Devices.Parallels, def.Devices.Consoles, def.Devices.Channels} {
		for _, c := range group {
			SetPTY(c, ptys)
		}
	}
	if len(def.Devices.Consoles) > 0 && len(def.Devices.Serials) > 0 && def.Devices.Consoles[0].TargetType == "serial" {
		first := def.Devices.Consoles[0]
		first.Backend, first.Alias = def.Devices.Serials[0].Backend, def.Devices.Serials[0].Alias
	}
}
