package guest_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// served is a socket that a root program serves; no other user may open it.
type served struct {
	t    *testing.T
	path string
	*net.UnixListener
}

func serve(t *testing.T, path string) *served {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	ok(t, err)
	ok(t, os.Chmod(path, 0o600))
	t.Cleanup(func() { _ = l.Close() })
	return &served{t, path, l}
}

// client waits for the next client.
func (s *served) client() *net.UnixConn {
	s.t.Helper()
	ok(s.t, s.SetDeadline(time.Now().Add(30*time.Second)))
	c, err := s.AcceptUnix()
	if err != nil {
		s.t.Fatalf("no connection to %s: %v", s.path, err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// speaking is a guest with a BIOS that writes to its first serial port.
func speaking(name, devices string) string {
	doc := strings.Replace(small(name), "</type>", "</type><bios useserial='yes'/>", 1)
	return strings.Replace(doc, "<serial type='pty'/>", devices, 1)
}

// hears reads what the guest's BIOS says at its start.
func hears(t *testing.T, c net.Conn) {
	t.Helper()
	ok(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatalf("nothing comes of the guest: %v", err)
	}
}

// TestConnect_SocketThatOnlyRootMayOpen: the daemon connects a character device where the user
// that QEMU runs as may not.
func TestConnect_SocketThatOnlyRootMayOpen(t *testing.T) {
	d := newDaemonOf(t, true)
	hidden := filepath.Join(d.dir, "hidden")
	ok(t, os.Mkdir(hidden, 0o700))
	serial, channel, plugged := serve(t, hidden+"/serial"), serve(t, hidden+"/channel"), serve(t, hidden+"/plugged")
	g := d.define(speaking("connects",
		"<serial type='unix'><source mode='connect' path='"+serial.path+"'/></serial>"+
			"<channel type='unix'><source mode='connect' path='"+channel.path+"'/><target type='virtio' name='org.libguestfs.channel.0'/></channel>"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	line := serial.client()
	channel.client()
	hears(t, line)

	port := "<channel type='unix'><source mode='connect' path='" + plugged.path + "'/><target type='virtio' name='plugged'/></channel>"
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), port, machine.Affect{Live: true}))
	plugged.client()
}

// TestConnect_NobodyListens: the refusal names the socket and what to do.
func TestConnect_NobodyListens(t *testing.T) {
	d := newDaemonOf(t, true)
	for name, says := range map[string]string{"absent": "no such file", "deserted": "start the program that serves it first"} {
		path := filepath.Join(d.dir, name)
		if name == "deserted" {
			ok(t, serve(t, path).Close())
			f, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			ok(t, err)
			_ = unix.Unlink(path)
			ok(t, unix.Bind(f, &unix.SockaddrUnix{Name: path}))
			ok(t, unix.Close(f))
		}
		g := d.define(speaking(name, "<serial type='unix'><source mode='connect' path='"+path+"'/></serial>"))
		err := launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{})
		if err == nil || !strings.Contains(err.Error(), "cannot connect to the socket "+path) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
		d.want(g, domain.ShutOff, domain.ReasonUnknown)
	}
}

// TestConnect_Reconnects: a device that is to connect again does so when its server comes back,
// comes late, or the daemon was replaced.
func TestConnect_Reconnects(t *testing.T) {
	d := newDaemonOf(t, true)
	path := filepath.Join(d.dir, "again")
	source := "<source mode='connect' path='" + path + "'><reconnect enabled='yes' timeout='1'/></source>"
	g := d.define(speaking("reconnects", "<serial type='unix'>"+source+"</serial>"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true})) // no program serves it yet

	first := serve(t, path)
	line := first.client()
	ok(t, guest.Resume(d.ctx(), g, scope.Daemon("a test")))
	hears(t, line)
	ok(t, errors.Join(line.Close(), first.Close()))
	second := serve(t, path)
	second.client()

	d.reopen(func() { ok(t, second.Close()) })
	g = d.again(g)
	serve(t, path).client()

	late := serve(t, filepath.Join(d.dir, "late"))
	// It brings a controller for the channel along.
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), "<controller type='virtio-serial' index='0'/>", machine.Affect{Live: true}))
	port := "<channel type='unix'>" + strings.Replace(source, path, late.path, 1) + "<target type='virtio' name='late'/></channel>"
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), port, machine.Affect{Live: true}))
	late.client()
}

// TestConnect_HeldToFolders: a client that is held to folders reaches no socket outside of them by
// way of the daemon.
func TestConnect_HeldToFolders(t *testing.T) {
	d := newDaemonOf(t, true)
	mine := filepath.Join(d.dir, "mine")
	ok(t, os.Mkdir(mine, 0o755))
	other := serve(t, filepath.Join(d.dir, "other"))
	ok(t, os.Symlink(other.path, mine+"/link"))
	g, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test").Within([]string{mine}), speaking("held", "<serial type='unix'><source mode='connect' path='"+mine+"/link'/></serial>"), false)
	ok(t, err)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, "links are not followed there")
}
