package guest_test

import (
	"os"
	"strings"
	"testing"
)

// A guest may bring its QEMU to write without end: the log stays bounded, its end
// is kept, and what is written next follows.
func TestALogThatGrowsIsCut(t *testing.T) {
	d := newDaemon(t)
	path := d.LogPath("talker")
	qemu, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	ok(t, err)
	defer qemu.Close()
	_, err = qemu.WriteString(strings.Repeat("again and again\n", 5<<16) + "the last word\n")
	ok(t, err)
	d.CutLogs()
	_, err = qemu.WriteString("and another\n")
	ok(t, err)
	now, err := os.ReadFile(path)
	ok(t, err)
	if string(now) != "and another\n" {
		t.Errorf("the log begins with %.40q and has %d bytes", now, len(now))
	}
	kept, err := os.ReadFile(path + ".0")
	ok(t, err)
	if len(kept) > 1<<20 || !strings.HasSuffix(string(kept), "the last word\n") {
		t.Errorf("%d bytes are kept, and end in %.40q", len(kept), kept[max(0, len(kept)-40):])
	}
}
