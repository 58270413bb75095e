// Package mounttest makes file systems that never answer, for tests.
package mounttest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Hang mounts a file system on a directory that never answers, and gives what
// makes it fail instead. The test skips where that cannot be done.
func Hang(t testing.TB, dir string) (release func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("needs /dev/fuse:", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("never", dir, "fuse.never", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		_ = unix.Close(fd) // nothing was mounted
		t.Skip("cannot mount FUSE here:", err)
	}
	release = sync.OnceFunc(func() {
		// Whoever waits for an answer gets an error when the last descriptor goes.
		if err := errors.Join(unix.Close(fd), unix.Unmount(dir, unix.MNT_DETACH)); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release)
	return release
}
