package mounttest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Visits returns a function that counts the calls that wait for an answer of the file system
// that Hang has mounted on a directory. The test skips if the kernel does not
// report them.
func Visits(t testing.TB, dir string) (waiting func() int) {
	t.Helper()
	control := t.TempDir()
	if err := unix.Mount("visits", control, "fusectl", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		t.Skip("cannot ask FUSE who waits:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(control, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	counter := filepath.Join(control, minor(t, dir), "waiting")
	return func() int {
		text, err := os.ReadFile(counter)
		if err != nil {
			return 0 // it has been released
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Error(err)
		}
		return max(0, n-1) // the kernel's own greeting waits, too
	}
}

// minor returns the minor number of the device mounted on a directory, which FUSE
// names its connections by. The directory itself must not be touched: it hangs.
func minor(t testing.TB, dir string) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == dir {
			_, number, _ := strings.Cut(fields[2], ":")
			return number
		}
	}
	t.Fatalf("nothing is mounted on %s", dir)
	return ""
}
