package conformance

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Users connect to both APIs' sockets: members of the group (as primary or supplementary group), other users, and
// users who only read.
// Promise: A20
func TestSocket_GroupMayConnect(t *testing.T) {
	needs(t)
	d := start(t, "--group", "games") // Debian has it anywhere
	if err := os.Chmod(d.dir, 0o711); err != nil {
		t.Fatal(err)
	}
	d.define(t, shape{name: "web-1"})
	lodge := []string{program(t, "lodge"), "--socket", d.run + "/lodge.sock", "ps"}
	virsh := []string{"virsh", "-q", "-c", d.uri(), "list", "--all"}
	for who, c := range map[string]struct {
		groups []string
		in     bool
	}{
		"a member":             {[]string{"--regid", "games", "--clear-groups"}, true},
		"a member besides":     {[]string{"--regid", "4244", "--groups", "games"}, true},
		"another":              {[]string{"--regid", "4244", "--clear-groups"}, false},
		"a member of another":  {[]string{"--regid", "4244", "--groups", "adm"}, false},
		"one of root's groups": {[]string{"--regid", "root", "--clear-groups"}, false},
	} {
		for _, words := range [][]string{virsh, lodge} {
			client := d.command(t.Context(), "setpriv", slices.Concat([]string{"--reuid", "4244"}, c.groups, words)...)
			client.Env = append(os.Environ(), "HOME=/nonexistent")
			out, err := client.CombinedOutput()
			if in := err == nil && strings.Contains(string(out), "web-1"); in != c.in {
				t.Errorf("%s connects by %s: %v, want %v: %s", who, words[0], in, c.in, out)
			}
		}
	}
	looks := d.as(t.Context(), stranger, "virsh", "-q", "-r", "-c", d.uri()+"-ro", "list", "--all", "--name")
	if out, err := looks.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "web-1" {
		t.Errorf("a read-only client sees %q, %v", out, err)
	}
}

// hasSocket reports whether a socket with this path lies in the test's directory. The daemon binds sockets through
// an open folder, so the kernel names them by that.
func (d *daemon) hasSocket(t *testing.T, path string) (found bool) {
	t.Helper()
	if !strings.HasPrefix(path, "/proc/self/fd/") {
		return false
	}
	err := filepath.WalkDir(d.dir, func(_ string, e fs.DirEntry, err error) error {
		found = found || err == nil && e.Type() == fs.ModeSocket && e.Name() == filepath.Base(path)
		return nil // entries that have vanished are ignored
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A world has only a daemon with its defaults and its guests. Apart from the daemon's own sockets, nothing there
// may listen, whatever the family of addresses.
// Promise: A21
func TestDefaults_NoNetworkListener(t *testing.T) {
	needs(t)
	d := start(t)
	d.define(t, shape{name: "plain"})
	d.define(t, shape{name: "seen", devices: "<graphics type='vnc'/><graphics type='spice' autoport='yes'/><video><model type='vga'/></video>"})
	d.virsh(t, "start", "--paused", "plain")
	listening := func() (found []string) {
		out := d.output(t, "ss", "-H", "-l", "-n", "-t", "-u", "-w", "-x", "-0", "--sctp", "--dccp", "--vsock")
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 4 && !strings.HasPrefix(f[4], d.dir+"/") && !d.hasSocket(t, f[4]) {
				found = append(found, f[0]+" "+f[4])
			}
		}
		return found
	}
	if found := listening(); len(found) > 0 {
		t.Errorf("sockets outside the test's directories listen: %q", found)
	}
	d.virsh(t, "start", "--paused", "seen")
	for _, what := range listening() {
		if !strings.HasPrefix(what, "tcp 127.0.0.1:59") {
			t.Errorf("a display without an address listens at %q", what)
		}
	}
	if n := len(listening()); n != 2 {
		t.Errorf("%d displays listen, not 2", n)
	}
}
