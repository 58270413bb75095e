package image

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// While the daemon writes a file, QEMU cannot use it. While the daemon copies a file, QEMU cannot write it. The
// daemon neither writes nor copies a file that QEMU uses.
// Promise: F20
func TestLockToWrite_RefusesGuests(t *testing.T) {
	qemu, err := exec.LookPath("qemu-io")
	if err != nil {
		t.Skip("needs qemu-io:", err)
	}
	dir := t.TempDir()
	open := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	from, into := open("from"), open("into")
	if _, err := from.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	may := func(when string, f *os.File, want bool, args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), qemu, append(args, "-f", "raw", f.Name())...).CombinedOutput()
		if got := err == nil; got != want || !got && !strings.Contains(string(out), "lock") {
			t.Errorf("%s: qemu-io %q of %s: %v\n%s", when, args, f.Name(), err, out)
		}
	}
	reads, writes := []string{"-r", "-c", "read 0 512"}, []string{"-c", "write 0 512"}
	copied := func(float64) {
		may("amid a copy", from, true, reads...)
		may("amid a copy", from, false, writes...)
		may("amid a copy", into, false, reads...)
	}
	if err := CopyBytes(t.Context(), from, into, copied); err != nil {
		t.Fatal(err)
	}
	if err := Erase(t.Context(), into, false, func(float64) { may("amid an erasure", into, false, writes...) }); err != nil {
		t.Fatal(err)
	}
	may("after a copy", from, true, writes...)
	may("after all", into, true, writes...)

	// A lock through another open file plays QEMU's lock.
	other := open("into")
	release, err := LockToWrite(other)
	if err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"a copy":       func() error { return CopyBytes(t.Context(), from, into, nil) },
		"a copy of it": func() error { return CopyBytes(t.Context(), into, from, nil) },
		"an erasure":   func() error { return Erase(t.Context(), into, false, nil) },
		"a new size":   func() error { return (*Tool)(nil).Resize(t.Context(), into, Raw, Growth{Size: 8192}) },
	} {
		if err := do(); !fault.Is(err, fault.Busy) {
			t.Errorf("%s: %v", what, err)
		}
	}
	release()
	if err := CopyBytes(t.Context(), into, from, nil); err != nil {
		t.Error(err)
	}
}

// On SMB a locked byte cannot be written, not even by the holder of the lock. So no byte of a file there is locked
// to mark the file as being written.
// Promise: F20
func TestLockToWrite_MandatoryLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	uses := func() Use {
		t.Helper()
		release, err := LockToWrite(f)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		return InUse(other)
	}
	if got := uses(); got != Written {
		t.Errorf("what is written is seen as %v", got)
	}
	count(t, &mandatoryLockFS, f)
	if got := uses(); got != Unused {
		t.Errorf("bytes are locked that are to be written: %v", got)
	}
	if err := LockToRemove(other); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("what is to be removed is kept open: %v", err)
	}
}

// count adds the file system of a file to one of these lists until the test ends.
func count(t *testing.T, systems *[]int64, f *os.File) {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		t.Fatal(err)
	}
	was := *systems
	t.Cleanup(func() { *systems = was })
	*systems = append([]int64{int64(fs.Type)}, was...)
}
