package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/fault"
)

// script gives a tool that is a shell script.
func script(t *testing.T, text string) *Tool {
	t.Helper()
	tool := tool(t)
	tool.path = filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(tool.path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return tool
}

func TestStoppedToolIsEnded(t *testing.T) {
	tool := script(t, "kill -STOP $$")
	tool.stopped = 60 * time.Millisecond
	err := tool.run(t.Context(), 0, nil, nil)
	if !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "has been stopped by a signal for 60ms") {
		t.Error(err)
	}
}

func TestSlowToolIsLeftAlone(t *testing.T) {
	tool := script(t, "sleep 0.3")
	tool.stopped = 30 * time.Millisecond
	if err := tool.run(t.Context(), 0, nil, nil); err != nil {
		t.Error(err)
	}
}

// TestALockIsTriedAgain has a tool that cannot tell how fast the processor is, at first
// or ever.
func TestALockIsTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		fails int
		made  bool
	}{"at first": {2, true}, "ever": {1000, false}} {
		t.Run(name, func(t *testing.T) {
			count := filepath.Join(t.TempDir(), "count")
			tool := script(t, fmt.Sprintf("echo >>%s\n[ $(wc -l <%s) -gt %d ] || { echo 'qemu-img: x: Unable to get accurate CPU usage' >&2; exit 1; }", count, count, c.fails))
			err := tool.makeFormat(t.Context(), empty(t, "image"), Plan{Format: LUKS, Virtual: 1 << 20, Lock: &Lock{Passphrase: []byte("x")}})
			if (err == nil) != c.made {
				t.Errorf("got %v", err)
			}
			if lines, err := os.ReadFile(count); err != nil || len(lines) > lockTries {
				t.Errorf("%d attempts, %v", len(lines), err)
			}
		})
	}
}
