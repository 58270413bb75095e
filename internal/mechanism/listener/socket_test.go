package listener

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func TestListen_StaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "sock")
	first, err := Listen(t.Context(), Place{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), Place{Path: path}); !fault.Is(err, fault.Busy) {
		t.Errorf("a socket that somebody serves: %v", err)
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false) // like a killed daemon
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(t.Context(), Place{Path: path, Everybody: true})
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

// The daemon accepts no connections at the moment, and its backlog is full.
func TestListen_BusySocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	dialer := net.Dialer{}
	for {
		waiting, err := dialer.DialContext(t.Context(), "unix", path)
		if err != nil {
			break // backlog full
		}
		defer func() { _ = waiting.Close() }()
	}
	if _, err := Listen(t.Context(), Place{Path: path}); !fault.Is(err, fault.Busy) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the socket was taken away: %v", err)
	}
}

func TestListen_NotASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), Place{Path: path}); !fault.Is(err, fault.Exists) {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("the file is %q, %v", b, err)
	}
}

func TestListen_Modes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := Listen(t.Context(), Place{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	checkMode(t, path, 0o600)
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to other groups")
	}
	shared := path + "-group"
	g, err := Listen(t.Context(), Place{Path: shared, GID: 12})
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

func TestAdmit(t *testing.T) {
	groups := []uint32{110, 36}
	for _, c := range []struct {
		name      string
		peer      Peer
		everybody bool
		want      bool
	}{
		{"root", Peer{}, false, true},
		{"somebody", Peer{UID: 1000, GID: 1000}, false, false},
		{"somebody, to read", Peer{UID: 1000, GID: 1000}, true, true},
		{"a member", Peer{UID: 1000, GID: 1000, Groups: []uint32{5, 36}}, false, true},
		{"a member by the first group", Peer{UID: 1000, GID: 110}, false, true},
		{"the unknown", Peer{Unknown: errors.New("no socket")}, true, false},
	} {
		err := c.peer.Admit(c.everybody, groups)
		if (err == nil) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v is no refusal", c.name, err)
		}
	}
}

// TestPeer asks the kernel about a connection within this process.
func TestPeer(t *testing.T) {
	l, err := Listen(t.Context(), Place{Path: filepath.Join(t.TempDir(), "sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var dialer net.Dialer
	client, err := dialer.DialContext(t.Context(), "unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	p := PeerOf(conn)
	if p.Unknown != nil || int(p.PID) != os.Getpid() || int(p.UID) != os.Geteuid() || int(p.GID) != os.Getegid() {
		t.Errorf("got %+v", p)
	}
}
