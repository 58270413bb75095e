package machine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A compromised QEMU or TPM emulator nests folders deeper than the daemon may open files. They are removed with
// the rest, within the daemon's limit of open files. Files outside the folder stay, also if a link leads there.
// Promise: I20
func TestRemoveTree_DeepFolders(t *testing.T) {
	dir := t.TempDir()
	state, beside := filepath.Join(dir, "state"), filepath.Join(dir, "beside")
	for _, path := range []string{state, beside} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.WriteFile(filepath.Join(beside, "kept"), nil, 0o600), os.WriteFile(filepath.Join(state, "tpm2-00.permall"), nil, 0o600),
		os.Symlink(beside, filepath.Join(state, "link")), nest(state, 3000))
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = min(1000, before.Cur)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err = RemoveTree(state)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there still: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(beside, "kept")); err != nil {
		t.Errorf("what a link led to has gone: %v", err)
	}
	if err := RemoveTree(state); err != nil {
		t.Errorf("removing a missing folder: %v", err)
	}
}

// nest makes folders in each other, each with a file, which no path is long enough for.
func nest(in string, depth int) error {
	at, err := unix.Open(in, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for ; err == nil && depth > 0; depth-- {
		below := -1
		err = unix.Mkdirat(at, "d", 0o700)
		if err == nil {
			err = unix.Mknodat(at, "f", unix.S_IFREG|0o600, 0)
		}
		if err == nil {
			below, err = unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		_ = unix.Close(at) // nothing was written to it
		at = below
	}
	if at >= 0 {
		_ = unix.Close(at)
	}
	return err
}
