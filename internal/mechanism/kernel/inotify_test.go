package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func TestRoomForInotify(t *testing.T) {
	dir := t.TempDir()
	root := At(dir)
	file := filepath.Join(dir, "proc/sys/fs/inotify/max_user_instances")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("128\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := root.roomForInotify(func() error { return nil }); err != nil {
		t.Error(err)
	}
	err := root.roomForInotify(func() error { return unix.EMFILE })
	if !fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), "is 128") || !strings.Contains(err.Error(), "sysctl -w fs.inotify.max_user_instances=1024") {
		t.Errorf("at the limit: %v", err)
	}
	if err := root.roomForInotify(func() error { return unix.ENOMEM }); !fault.Is(err, fault.Failed) {
		t.Errorf("without memory: %v", err)
	}
}
