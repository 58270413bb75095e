package image

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A caller that gives up on a file system that hangs closes the file. The operation that it waited for still uses
// the descriptor number, so no other file may get that number before the operation ends.
// Promise: X2
func TestWithDescriptor_Number(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	var was, is unix.Stat_t
	err = withDescriptor(f, func() error {
		fd := int(f.Fd())
		if err := unix.Fstat(fd, &was); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		other, err := os.Create(path + ".other") // it would get the number if that were free
		if err != nil {
			return err
		}
		defer other.Close()
		return unix.Fstat(fd, &is)
	})
	if err != nil || was.Ino != is.Ino {
		t.Errorf("the number is that of file %d, and was that of %d: %v", is.Ino, was.Ino, err)
	}
	if err := RecordBeforeWrite(f); err == nil {
		t.Error("a file that is closed is noted")
	}
	if err := CheckNoWriter(f); err == nil {
		t.Error("a file that is closed is looked at")
	}
}
