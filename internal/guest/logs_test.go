package guest_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/guest"
)

// A guest may make its QEMU log without end. The log stays within its limit, keeps its end, and continues with the
// next output.
// Promise: S13
func TestTrimLogs_GrowingLog(t *testing.T) {
	d := newDaemon(t)
	path := guest.LogPath(d.Registry, "talker")
	qemu, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	ok(t, err)
	defer qemu.Close()
	_, err = qemu.WriteString(strings.Repeat("again and again\n", 5<<16) + "the last word\n")
	ok(t, err)
	guest.TrimLogs(d.Registry)
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

// Logs stay when their guests have gone, and so might fill the disk as well: the newest are
// kept, and those of guests that are there.
// Promise: S13
func TestTrimLogs_LeftLogs(t *testing.T) {
	d := newDaemon(t)
	d.define(small("there"))
	const gone = 1024 + 3
	at := time.Now().Add(-time.Hour)
	write := func(name string, age int) string {
		path := guest.LogPath(d.Registry, name)
		ok(t, os.WriteFile(path, nil, 0o600))
		ok(t, os.Chtimes(path, at, at.Add(time.Duration(age)*time.Second)))
		return path
	}
	keeps := map[string]bool{write("there", 0): true, write("there-swtpm", 0): true}
	for i := range gone {
		keeps[write(fmt.Sprint("gone-", i), i)] = i >= 3
	}
	ok(t, os.WriteFile(guest.LogPath(d.Registry, "gone-0")+".0", nil, 0o600))
	keeps[guest.LogPath(d.Registry, "gone-0")+".0"] = false
	guest.TrimLogs(d.Registry)
	for path, kept := range keeps {
		if _, err := os.Stat(path); (err == nil) != kept {
			t.Errorf("%s: %v", path, err)
		}
	}
}
