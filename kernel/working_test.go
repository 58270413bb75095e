package kernel_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lodge-kvm/lodge/kernel"
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
