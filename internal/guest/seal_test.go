package guest_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/console"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// sealed checks that root owns a guest's own directories. The guest's users reach the files there and nothing
// more.
func sealed(t *testing.T, when string, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		var st unix.Stat_t
		ok(t, unix.Stat(dir, &st))
		if st.Uid != 0 || st.Gid == 0 || st.Mode != unix.S_IFDIR|0o710 {
			t.Errorf("%s: %s is user %d's and group %d's, of mode %o", when, dir, st.Uid, st.Gid, st.Mode)
		}
	}
}

const plugged = "<channel type='unix'><target type='virtio' name='org.test.1'/></channel>"

// Files that QEMU created before the guest ran are used, and further ones are handed over. If a daemon left the
// guest's directory open, the next one seals it.
// Promise: I11
func TestSeal_ServedGuest(t *testing.T) {
	d := newDaemonOf(t, true)
	display := filepath.Join(d.dir, "screens", "vnc.sock")
	ok(t, os.Mkdir(filepath.Dir(display), 0o755))
	devices := []string{
		"<channel type='unix'><target type='virtio' name='org.test.0'/></channel>", "<video><model type='vga'/></video>",
		"<graphics type='vnc'><listen type='socket' socket='" + display + "'/></graphics>",
	}
	if _, err := exec.LookPath("swtpm"); err == nil {
		devices = append(devices, "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>")
	}
	serial := "<serial type='unix'><source mode='bind' path='" + filepath.Join(d.dir, "serial.sock") + "'/></serial>" // a console, too
	g := d.define(strings.Replace(small("sealed", devices...), "<serial type='pty'/>", serial, 1))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	own := filepath.Join(guest.RunDir(g), "own")
	dirs := []string{own, filepath.Join(own, "display1")}
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), plugged, machine.Affect{Live: true}))
	sealed(t, "started", dirs...)
	d.serves(g, "started", display)

	d.reopen(func() {
		for _, dir := range dirs { // as a daemon left it that knew no better
			ok(t, os.Chown(dir, int(userOf(t, g)), int(userOf(t, g))))
			ok(t, os.Chmod(dir, 0o700))
		}
	})
	g = d.again(g)
	sealed(t, "adopted", dirs...)
	d.serves(g, "adopted", display)

	ok(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), plugged, machine.Affect{Live: true}))
	eventually(t, "the channel goes", func() bool { return len(g.View().Active.Devices.Channels) == 1 })
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), plugged, machine.Affect{Live: true}))
	d.serves(g, "plugged again", display)
	log, err := os.ReadFile(guest.LogPath(d.Registry, "sealed"))
	ok(t, err)
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if after, err := os.ReadFile(guest.LogPath(d.Registry, "sealed")); err != nil || bytes.Contains(after[len(log):], []byte("Permission denied")) {
		t.Errorf("at its end QEMU says (%v)\n%s", err, after[len(log):])
	}
}

// serves has the guest's picture taken, and its channels and display reached.
func (d *daemon) serves(g *guest.Guest, when, display string) {
	d.t.Helper()
	mime, picture, err := console.Screenshot(d.ctx(), g, scope.Daemon("a test"), 0)
	ok(d.t, err)
	data, err := io.ReadAll(picture)
	ok(d.t, err)
	ok(d.t, picture.Close())
	var wide, high, most int
	if n, err := fmt.Sscanf(string(data[:min(len(data), 20)]), "P6\n%d %d\n%d\n", &wide, &high, &most); n != 3 || len(data) < 3*wide*high {
		d.t.Errorf("%s: a picture of type %s with %d bytes begins with %q (%v)", when, mime, len(data), data[:min(len(data), 20)], err)
	}
	var sets []any
	ok(d.t, guest.Session(g).Execute(d.ctx(), "query-fdsets", nil, &sets))
	if len(sets) > 0 {
		d.t.Errorf("%s: QEMU keeps %v", when, sets)
	}
	for _, c := range g.View().Active.Devices.Channels {
		line, err := console.OpenChannel(d.ctx(), g, scope.Daemon("a test"), c.Name, machine.ConsoleOptions{})
		if err != nil {
			d.t.Errorf("%s: channel %s at %s: %v", when, c.Name, c.Backend.Path, err)
			continue
		}
		ok(d.t, line.Close())
	}
	console, err := console.OpenConsole(d.ctx(), g, scope.Daemon("a test"), "", machine.ConsoleOptions{})
	ok(d.t, err)
	ok(d.t, console.Close())
	conn, err := new(net.Dialer).DialContext(d.ctx(), "unix", display)
	ok(d.t, err)
	defer conn.Close()
	greeting := make([]byte, 4)
	if _, err := io.ReadFull(conn, greeting); err != nil || string(greeting) != "RFB " {
		d.t.Errorf("%s: the display says %q, %v", when, greeting, err)
	}
}

// A guest's run record is lost. Neither its QEMU nor its user's number is lost with it, whichever user it runs as.
// Promise: I11
func TestSeal_FoundWithoutRecord(t *testing.T) {
	d := newDaemonOf(t, true)
	named := "<seclabel type='static' model='dac' relabel='no'><label>+107:+36</label></seclabel></domain>"
	guests := []*guest.Guest{d.define(small("lost")), d.define(strings.Replace(small("named"), "</domain>", named, 1))}
	records := map[string][]byte{}
	for _, g := range guests {
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		path := filepath.Join(guest.RunDir(g), "run.json")
		whole, err := os.ReadFile(path)
		ok(t, err)
		records[path] = whole
	}
	id := userOf(t, guests[0])
	d.reopen(func() {
		for path := range records {
			ok(t, os.WriteFile(path, []byte("{"), 0o600))
		}
	})
	for _, g := range guests {
		refused(t, launch.Start(d.ctx(), d.again(g), scope.Daemon("a test"), launch.StartOptions{}), fault.Busy, "still works")
	}
	other := d.define(small("other"))
	ok(t, launch.Start(d.ctx(), other, scope.Daemon("a test"), launch.StartOptions{}))
	if userOf(t, other) == id {
		t.Errorf("another guest runs as user %d, too", id)
	}
	d.reopen(func() {
		for path, whole := range records {
			ok(t, os.WriteFile(path, whole, 0o600))
		}
	})
	for _, g := range guests {
		if d.again(g).View().PID == 0 {
			t.Errorf("%s is not taken up again", g.View().Name)
		}
	}
}

// QEMU may make the one terminal of the attached device, and no other. It cannot use the node among the
// terminals for that.
// Promise: I11
func TestSeal_AttachTerminal(t *testing.T) {
	d := newDaemonOf(t, true)
	channel := strings.Replace(plugged, "test.1", "test.0", 1)
	for _, first := range []string{"<serial type='pty'/>", ""} { // it has terminals from the start, or comes to have them
		g := d.define(strings.Replace(small(fmt.Sprintf("sealed-%d", len(first)), channel), "<serial type='pty'/>", first, 1))
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), "<channel type='pty'><target type='virtio' name='org.test.1'/></channel>", machine.Affect{Live: true}))
		line, err := console.OpenChannel(d.ctx(), g, scope.Daemon("a test"), "org.test.1", machine.ConsoleOptions{})
		ok(t, err)
		ok(t, line.Close())
		dev := fmt.Sprintf("/proc/%d/root/dev", g.View().PID)
		if _, err := os.Stat(dev + "/ptmx"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("QEMU may make more terminals: %v", err)
		}
		var maker, null unix.Stat_t
		ok(t, unix.Stat(dev+"/pts/ptmx", &maker))
		ok(t, unix.Stat(dev+"/null", &null))
		if maker.Rdev != null.Rdev {
			t.Errorf("QEMU may create more terminals, by device %x, where the host allows all users to", maker.Rdev)
		}
	}
}
