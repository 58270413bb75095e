package launch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/guest/provision"
)

// Only a regular file is opened for reading, no matter how often the path is replaced. To open a device can
// do harm.
// Promise: I5
func TestOpenShown_PathReplaced(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "path"), filepath.Join(dir, "other")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(other, 0o600); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE); err != nil {
				stopped <- err
				return
			}
		}
	}()
	for range 2000 {
		f, err := provision.OpenShown(path, 0)
		if err != nil {
			t.Error(err)
			break
		}
		info, err := f.Stat()
		flags, err2 := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
		_ = f.Close()
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if !info.Mode().IsRegular() && flags&unix.O_PATH == 0 {
			t.Error("a pipe was opened to be read")
			break
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
}

// The number of files that QEMU creates in its directory is limited, so a walk through the directory ends.
// Promise: I11
func TestSeal_FullDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	top := t.TempDir()
	for _, name := range []string{"a", "b", "below/c"} {
		path := filepath.Join(top, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for most, want := range map[int]bool{3: false, 4: true} {
		dir, err := os.Open(top)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(sealTree(dir, os.Getgid(), &most), dir.Close()); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "it holds more") {
			t.Errorf("with %d left: %v", most, err)
		}
	}
}
