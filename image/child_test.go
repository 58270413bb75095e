package image

import (
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
