package libvirt

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/fault"
)

func TestListenTakesOverWhatIsStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "libvirt-sock")
	first, err := Listen(t.Context(), Socket{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), Socket{Path: path}); !fault.Is(err, fault.Busy) {
		t.Errorf("a socket that somebody serves: %v", err)
	}
	first.Listener.(*net.UnixListener).SetUnlinkOnClose(false) // as a daemon that was killed
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(t.Context(), Socket{Path: path, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	checkMode(t, path, 0o666)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func TestListenLeavesFilesAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libvirt-sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), Socket{Path: path}); !fault.Is(err, fault.Exists) {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("the file is %q, %v", b, err)
	}
}

func TestSocketModes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libvirt-sock")
	l, err := Listen(t.Context(), Socket{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	checkMode(t, path, 0o600)
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to other groups")
	}
	shared := path + "-group"
	g, err := Listen(t.Context(), Socket{Path: shared, GID: 12})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	checkMode(t, shared, 0o660)
}

func checkMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != want {
		t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
	}
}

func TestWhoMayComeIn(t *testing.T) {
	groups := []uint32{110, 36}
	for _, c := range []struct {
		name     string
		peer     peer
		readOnly bool
		want     bool
	}{
		{"root", peer{}, false, true},
		{"somebody", peer{uid: 1000, gid: 1000}, false, false},
		{"somebody, to read", peer{uid: 1000, gid: 1000}, true, true},
		{"a member", peer{uid: 1000, gid: 1000, groups: []uint32{5, 36}}, false, true},
		{"a member by the first group", peer{uid: 1000, gid: 110}, false, true},
		{"the unknown", peer{unknown: errors.New("no socket")}, true, false},
	} {
		err := c.peer.admit(c.readOnly, groups)
		if (err == nil) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && codeOf(err) != codeAuthFailed {
			t.Errorf("%s: code %d", c.name, codeOf(err))
		}
	}
}

// TestPeer asks the kernel about a connection of this very process.
func TestPeer(t *testing.T) {
	h := serve(t)
	w := h.open("")
	p := peerOf(w.conn)
	if p.unknown != nil || int(p.pid) != os.Getpid() || int(p.uid) != os.Geteuid() || int(p.gid) != os.Getegid() {
		t.Errorf("got %+v", p)
	}
}
