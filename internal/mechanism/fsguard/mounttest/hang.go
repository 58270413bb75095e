// Package mounttest makes file systems that never answer, or have lost their server,
// for tests.
package mounttest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Hang mounts a file system that never answers on a directory. The returned function
// makes its calls fail instead. The test skips if the host cannot do that.
func Hang(t testing.TB, dir string) (release func()) {
	t.Helper()
	server := over(t, dir, unix.S_IFDIR)
	return once(t, func() error { // waiting calls get an error when the last descriptor is closed
		return errors.Join(unix.Close(server), unix.Unmount(dir, unix.MNT_DETACH))
	})
}

// Kill mounts a file system without a server on a file. The returned function unmounts
// it. The test skips if the host cannot do that.
func Kill(t testing.TB, file string) (revive func()) {
	t.Helper()
	if err := unix.Close(over(t, file, unix.S_IFREG|0o600)); err != nil {
		t.Error(err)
	}
	return once(t, func() error { return unix.Unmount(file, unix.MNT_DETACH) })
}

// over mounts a file system on a path of that kind, and returns the descriptor for the answers
// of its server.
func over(t testing.TB, path string, mode int) (server int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("needs /dev/fuse:", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0", fd, mode)
	if err := unix.Mount("never", path, "fuse.never", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		_ = unix.Close(fd) // nothing was mounted
		t.Skip("cannot mount FUSE here:", err)
	}
	return fd
}

// once returns a function that runs do at its first call, or at the end of the test.
func once(t testing.TB, do func() error) func() {
	done := sync.OnceFunc(func() {
		if err := do(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(done)
	return done
}
