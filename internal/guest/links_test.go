package guest_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/console"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// userOf gives who a guest's QEMU runs as.
func userOf(t *testing.T, g *guest.Guest) uint32 {
	t.Helper()
	var own unix.Stat_t
	ok(t, unix.Stat(filepath.Join(guest.RunDir(g), "own"), &own))
	return own.Gid // it is root's by now
}

// A compromised QEMU reports terminals that are not its guest's, and replaces its sockets by symbolic links. The
// daemon may open any file, but must open neither for a client that wants the guest's console.
// Promise: I1
func TestLinks_CompromisedQEMU(t *testing.T) {
	d := newDaemonOf(t, true)
	// Earlier daemons had QEMU make its sockets in its own directory, and had it stay open.
	const uuid = "4b1d6a2e-9f0c-4c57-8c1a-1e5ca9e00002"
	own := filepath.Join(d.dir, "run/guest", uuid, "own")
	channel := func(name string) string {
		return fmt.Sprintf("<channel type='unix'><source mode='bind' path='%s/%s'/><target type='virtio' name='%s'/></channel>", own, name, name)
	}
	g := d.define(strings.Replace(small("deceiver", channel("org.test.0"), channel("org.qemu.guest_agent.0")), "<name>", "<uuid>"+uuid+"</uuid><name>", 1))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	for name, open := range map[string]func() error{
		"console": func() error {
			c, err := console.OpenConsole(d.ctx(), g, scope.Daemon("a test"), "", machine.ConsoleOptions{})
			if err == nil {
				err = c.Close()
			}
			return err
		},
		"channel": func() error {
			c, err := console.OpenChannel(d.ctx(), g, scope.Daemon("a test"), "org.test.0", machine.ConsoleOptions{})
			if err == nil {
				err = c.Close()
			}
			return err
		},
	} {
		if err := open(); err != nil {
			t.Fatalf("the %s of a QEMU that is honest: %v", name, err)
		}
	}

	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	ok(t, err)
	defer terminal.Close()
	ok(t, unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	ok(t, err)
	for _, path := range []string{fmt.Sprintf("/dev/pts/%d", number), "/dev/null", "/proc/self/fd/0"} {
		ok(t, guest.SetPTY(g, path))
		c, err := console.OpenConsole(d.ctx(), g, scope.Daemon("a test"), "", machine.ConsoleOptions{})
		if err == nil {
			_ = c.Close()
		}
		refused(t, err, fault.Denied, path)
	}

	socket := filepath.Join(d.dir, "of-others.sock")
	others, err := new(net.ListenConfig).Listen(d.ctx(), "unix", socket)
	ok(t, err)
	defer others.Close()
	for _, c := range g.View().Active.Devices.Channels[:1] { // the other is the agent's
		ok(t, os.Remove(c.Backend.Path))
		ok(t, os.Symlink(socket, c.Backend.Path))
		channel, err := console.OpenChannel(d.ctx(), g, scope.Daemon("a test"), c.Name, machine.ConsoleOptions{})
		if err == nil {
			_ = channel.Close()
		}
		refused(t, err, fault.Denied, c.Backend.Path)
	}
}

// A user can write to the folder of a guest's socket. A symbolic link there, in place of the socket or of a folder
// above it, must not lead the daemon to another socket. The daemon, as root, must not connect to one or remove
// one.
// Promise: A3, X11
func TestLinks_UsersFolder(t *testing.T) {
	d := newDaemonOf(t, true)
	const user = 4242
	others, folder := filepath.Join(d.dir, "others"), filepath.Join(d.dir, "folder")
	way := filepath.Join(folder, "way")
	for _, dir := range []string{others, folder, way} {
		ok(t, os.Mkdir(dir, 0o755))
	}
	ok(t, errors.Join(os.Chown(folder, user, user), os.Chown(way, user, user)))
	link := func(to, path string) {
		t.Helper()
		ok(t, errors.Join(os.Symlink(to, path), os.Lchown(path, user, user)))
	}
	path := func(name string) string { return filepath.Join(way, name) }
	channel := func(name string) string {
		return fmt.Sprintf("<channel type='unix'><source mode='bind' path='%s'/><target type='virtio' name='%s'/></channel>", path(name), name)
	}
	g := d.define(small("led", channel("org.test.0"), channel("org.qemu.guest_agent.0")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	open := func() error {
		c, err := console.OpenChannel(d.ctx(), g, scope.Daemon("a test"), "org.test.0", machine.ConsoleOptions{})
		if err == nil {
			err = c.Close()
		}
		return err
	}
	ok(t, open())

	listen := func(name string) *net.UnixListener {
		l, err := new(net.ListenConfig).Listen(d.ctx(), "unix", filepath.Join(others, name))
		ok(t, err)
		return l.(*net.UnixListener)
	}
	root := listen("org.test.0")
	defer root.Close()
	deserted := listen("org.qemu.guest_agent.0")
	deserted.SetUnlinkOnClose(false)
	ok(t, deserted.Close())
	ok(t, os.Rename(path("org.test.0"), path("moved")))
	link(filepath.Join(others, "org.test.0"), path("org.test.0"))
	refused(t, open(), fault.Denied, path("org.test.0"))
	ok(t, os.Rename(way, filepath.Join(folder, "moved")))
	link(others, way)
	refused(t, open(), fault.Denied, path("org.test.0"))

	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if _, err := os.Lstat(filepath.Join(others, "org.qemu.guest_agent.0")); err != nil {
		t.Errorf("the end of the guest has removed a file of others: %v", err)
	}
}

// A user owns a folder with a guest's files and replaces them by links to files of others. Disks, logs, sockets
// and save images must not follow these links, also for a client without rules.
// Promise: X11
func TestLinks_UsersLinkRefused(t *testing.T) {
	d := newDaemonOf(t, true)
	const user = 4242
	theirs, folder := filepath.Join(d.dir, "theirs"), filepath.Join(d.dir, "folder")
	ok(t, errors.Join(os.Mkdir(theirs, 0o755), os.WriteFile(filepath.Join(theirs, "shadow"), []byte("secret"), 0o600),
		os.Mkdir(folder, 0o755), os.Chown(folder, user, user)))
	link := func(to string) string {
		t.Helper()
		path := filepath.Join(folder, "link")
		_ = os.Remove(path) // from the last turn
		ok(t, errors.Join(os.Symlink(to, path), os.Lchown(path, user, user)))
		return path
	}
	file, below := link(filepath.Join(theirs, "shadow")), filepath.Join(folder, "link", "new")
	for what, device := range map[string]string{
		"a disk":           "<disk type='file'><driver name='qemu' type='raw'/><source file='" + file + "'/><target dev='vda' bus='virtio'/></disk>",
		"a CD":             "<disk type='file' device='cdrom'><driver name='qemu' type='raw'/><source file='" + file + "'/><target dev='sda' bus='sata'/><readonly/></disk>",
		"a console's file": "<serial type='file'><source path='" + file + "'/></serial>",
		"a console's log":  "<serial type='pty'><log file='" + file + "'/></serial>",
	} {
		g := d.define(strings.Replace(small("led"), "<serial type='pty'/>", device, 1))
		if err := launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}); !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", what, err)
		}
		ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
	}
	link(theirs)
	g := d.define(small("led", "<channel type='unix'><source mode='bind' path='"+below+"'/><target type='virtio' name='org.test.0'/></channel>"))
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}), fault.Denied, "have root make the link")
	ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
	g = d.define(small("led"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	refused(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), below, savestate.SaveOptions{}), fault.Denied, "have root make the link")
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	content, err := os.ReadFile(filepath.Join(theirs, "shadow"))
	entries, e := os.ReadDir(theirs)
	if ok(t, errors.Join(err, e)); string(content) != "secret" || len(entries) != 1 {
		t.Errorf("theirs has %v, shadow %q", entries, content)
	}
}

// What a guest leaves running outside of its control group ends with it: the next guest
// that runs as the same user would be in its hands.
// Promise: I1
func TestUser_NoProcessLeftAfterEnd(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.define(small("parent"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	id := userOf(t, g)
	left := exec.CommandContext(t.Context(), "sleep", "600")
	left.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	ok(t, left.Start())
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if err := left.Wait(); err == nil || t.Context().Err() != nil {
		t.Errorf("it ended by itself: %v", err)
	}
}

// A guest that is to run as one of the users that others are given is refused.
func TestUser_NotShared(t *testing.T) {
	d := newDaemonOf(t, true)
	first := d.define(small("first"))
	ok(t, launch.Start(d.ctx(), first, scope.Daemon("a test"), launch.StartOptions{}))
	id := userOf(t, first)
	for i, who := range []string{fmt.Sprintf("+%d:+%d", id, id), fmt.Sprintf("+107:+%d", id)} {
		label := "<seclabel type='static' model='dac' relabel='no'><label>" + who + "</label></seclabel></domain>"
		second := d.define(strings.Replace(small(fmt.Sprintf("second-%d", i)), "</domain>", label, 1))
		refused(t, launch.Start(d.ctx(), second, scope.Daemon("a test"), launch.StartOptions{}), fault.Invalid, fmt.Sprint(id))
	}
}

// The right to open a guest's consoles and channels does not include its agent's channel. The agent executes
// commands as root.
// Promise: A1
func TestOpenChannel_AgentChannelRefused(t *testing.T) {
	d := newDaemonOf(t, true)
	channel := "<channel type='unix'><target type='virtio' name='%s'/></channel>"
	g := d.define(small("agent", fmt.Sprintf(channel, "org.qemu.guest_agent.0"), fmt.Sprintf(channel, "org.test.0")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	open := func(name string) error {
		c, err := console.OpenChannel(d.ctx(), g, scope.Daemon("a test"), name, machine.ConsoleOptions{Force: true})
		if err == nil {
			ok(t, c.Close())
		}
		return err
	}
	for _, name := range []string{"", "org.qemu.guest_agent.0", g.View().Active.Devices.Channels[0].Alias} {
		refused(t, open(name), fault.Unsupported, "agent")
	}
	ok(t, open("org.test.0"))
}
