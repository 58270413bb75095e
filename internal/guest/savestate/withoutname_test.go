package savestate

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The error about a full disk during a save tells the client to free space at its own path. It does not show the
// internal name of the daemon's open file.
func TestSave_NoSpace(t *testing.T) {
	err := withoutName(&fs.PathError{Op: "write", Path: "/proc/self/fd/24/image.partial", Err: unix.ENOSPC})
	if !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "/proc") || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("it is told %q", err)
	}
}
