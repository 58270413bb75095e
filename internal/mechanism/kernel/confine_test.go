package kernel_test

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// TestRunConfined_Capabilities: a program that root starts has the capabilities
// that were kept and no other. The daemon keeps all of its own.
// Promise: I20
func TestRunConfined_Capabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has capabilities to give up")
	}
	mine := status(t, "/proc/self/status", "CapEff")
	var said []byte
	err := kernel.RunConfined([]uintptr{unix.CAP_KILL}, func() (err error) {
		said, err = exec.CommandContext(t.Context(), "cat", "/proc/self/status").Output()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CapEff:\t0000000000000020", "CapBnd:\t0000000000000020", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(said), want) {
			t.Errorf("the program has no %q: %s", want, said)
		}
	}
	if now := status(t, "/proc/self/status", "CapEff"); now != mine {
		t.Errorf("this process has %s, and had %s", now, mine)
	}
	out, err := exec.CommandContext(t.Context(), "cat", "/proc/self/status").Output()
	if err != nil || strings.Contains(string(out), "NoNewPrivs:\t1") {
		t.Errorf("what is started otherwise is confined, too: %v", err)
	}
}

// TestRunConfined_Keyrings: programs that talk to guests cannot read the keys in the
// session keyring of the user that started the daemon.
// Promise: I20
func TestRunConfined_Keyrings(t *testing.T) {
	session := func() int {
		id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
		if err != nil {
			t.Skipf("this process may have no keyring: %v", err)
		}
		return id
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mine, theirs := session(), 0
	if err := kernel.RunConfined(nil, func() error { theirs = session(); return nil }); err != nil {
		t.Fatal(err)
	}
	if theirs == mine || session() != mine {
		t.Errorf("the program has the keys in %d, and this process those in %d, and had %d", theirs, session(), mine)
	}
}

func status(t *testing.T, path, field string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("%s has no %s", path, field)
	return ""
}
