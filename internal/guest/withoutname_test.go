package guest

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Whose save has no room is told to make some where he saves to, and not by which name the daemon has the file open.
func TestWhoHasNoRoomForASaveIsToldToMakeSome(t *testing.T) {
	err := withoutName(&fs.PathError{Op: "write", Path: "/proc/self/fd/24/image.partial", Err: unix.ENOSPC})
	if !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "/proc") || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("it is told %q", err)
	}
}
