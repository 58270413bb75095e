package kernel_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

func TestWorkingIn(t *testing.T) {
	dir := t.TempDir()
	for pid, cwd := range map[string]string{"7": dir, "12": "/", "30": dir, "31": dir + " (deleted)"} {
		if err := os.MkdirAll(filepath.Join(dir, "proc", pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(cwd, filepath.Join(dir, "proc", pid, "cwd")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "proc/7/cmdline"), []byte("qemu\x00-name\x00guest=a b\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := kernel.At(dir)
	if got, err := root.WorkingIn(dir); err != nil || !slices.Equal(got, []int{7, 30}) {
		t.Errorf("processes %v work there, want 7 and 30", got)
	}
	if got, err := root.Command(7); err != nil || !slices.Equal(got, []string{"qemu", "-name", "guest=a b"}) {
		t.Errorf("it was started as %q", got)
	}
	if got, err := root.Command(12); err != nil || got != nil {
		t.Errorf("a process without words was started as %q", got)
	}
}

// The arguments of a stuck process cannot be read: reading them would hang.
func TestRunWith(t *testing.T) {
	dir := t.TempDir()
	for pid, name := range map[string]string{"7": "dnsmasq", "12": "qemu", "30": "dnsmasq", "31": "dnsmasq"} {
		if err := os.MkdirAll(filepath.Join(dir, "proc", pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "proc", pid, "comm"), []byte(name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for pid, words := range map[string]string{"7": "dnsmasq\x00--a=b\x00", "30": "dnsmasq\x00--a=bc\x00", "31": "sh\x00dnsmasq\x00--a=b\x00"} {
		if err := os.WriteFile(filepath.Join(dir, "proc", pid, "cmdline"), []byte(words), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "proc/12/cmdline"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := kernel.At(dir).RunWith("dnsmasq", "--a=b"); err != nil || !slices.Equal(got, []int{7, 31}) {
		t.Errorf("processes %v were run so, want 7 and 31: %v", got, err)
	}
}
