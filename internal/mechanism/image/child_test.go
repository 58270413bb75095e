package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// script returns a tool that is a shell script.
func script(t *testing.T, text string) *Tool {
	t.Helper()
	tool := tool(t)
	tool.path = filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(tool.path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return tool
}

// TestTool_HostAccess: an image that takes control of the qemu-img that reads it
// reaches the images that qemu-img was given, and nothing else of the host.
// Promise: I3
func TestTool_HostAccess(t *testing.T) {
	if quarters() == nil {
		t.Skip("no chambers can be made here")
	}
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	image, err := os.Create(filepath.Join(dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if err := image.Chmod(0o600); err != nil {
		t.Fatal(err)
	}
	tool := script(t, fmt.Sprintf(`say() { echo "$@" >>/proc/self/fd/3; }
grep -e ^Uid -e ^CapEff -e ^CapBnd -e ^NoNewPrivs /proc/self/status >>/proc/self/fd/3
cat %s >/dev/null 2>&1 && say can read another image
cat /etc/shadow >/dev/null 2>&1 && say can read the passwords
(echo x >/usr/lodge-escape) 2>/dev/null && say can write to programs
(echo x >/lodge-escape) 2>/dev/null && say can fill the memory
kill -0 %d 2>/dev/null && say can signal the daemon
i=%d; while [ $i -lt $$ ]; do kill -0 $i 2>/dev/null && say can signal the daemon by its thread $i; i=$((i+1)); done
ls /proc/%d >/dev/null 2>&1 && say can see the daemon
ls /proc/1/root/ >/dev/null 2>&1 && say can see the host
ls /proc/sys >/dev/null 2>&1 && say can see settings of the kernel
mkdir /tmp/x 2>/dev/null && mount -t tmpfs x /tmp/x 2>/dev/null && say can mount
say end
(head -c 3000000 /dev/zero >>/proc/self/fd/3) 2>/dev/null
exit 0
`, victim, os.Getpid(), os.Getpid(), os.Getpid()))
	if err := tool.run(t.Context(), bounds{file: 1 << 20}, []*os.File{image}, nil); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(image.Name())
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 1<<20 {
		t.Errorf("it wrote %d bytes", len(text))
	}
	said := strings.TrimRight(string(text), "\x00")
	for _, want := range []string{"CapEff:\t0000000000000002", "CapBnd:\t0000000000000002", "NoNewPrivs:\t1", "end\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("it has no %q", want)
		}
	}
	if strings.Contains(said, "Uid:\t0\t") || strings.Contains(said, "can ") {
		t.Error("it reaches what it should not")
	}
	if t.Failed() {
		t.Logf("it says:\n%s", said)
	}
}

// TestTool_ChildProcesses: processes that the tool started end with it.
// Promise: I3
func TestTool_ChildProcesses(t *testing.T) {
	if quarters() == nil {
		t.Skip("no chambers can be made here")
	}
	tool := script(t, "setsid sleep 600 >/dev/null 2>&1 &\necho $! >/proc/self/fd/3")
	note, err := os.Create(filepath.Join(t.TempDir(), "note"))
	if err != nil {
		t.Fatal(err)
	}
	defer note.Close()
	if err := tool.run(t.Context(), bounds{}, []*os.File{note}, nil); err != nil {
		t.Fatal(err)
	}
	pid, err := os.ReadFile(note.Name())
	if err != nil || len(pid) == 0 {
		t.Fatalf("%q, %v", pid, err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil {
		t.Fatal(err)
	}
	left, err := unix.PidfdOpen(n, 0)
	if err != nil {
		return // it has gone
	}
	defer unix.Close(left) //nolint:errcheck // nothing was written
	const patience = 20_000
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(left), Events: unix.POLLIN}}, patience); n != 1 {
		t.Errorf("process %s is left (%v)", pid, err)
	}
}

func TestTool_StoppedProcess(t *testing.T) {
	tool := script(t, "kill -STOP $$")
	tool.stopped = 60 * time.Millisecond
	err := tool.run(t.Context(), bounds{}, nil, nil)
	if !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "has been stopped by a signal for 60ms") {
		t.Error(err)
	}
}

func TestTool_SlowProcessRunsOn(t *testing.T) {
	tool := script(t, "sleep 0.3")
	tool.stopped = 30 * time.Millisecond
	if err := tool.run(t.Context(), bounds{}, nil, nil); err != nil {
		t.Error(err)
	}
}

// TestMake_EncryptionRetry uses a tool that cannot measure the speed of the processor, at first
// or ever.
func TestMake_EncryptionRetry(t *testing.T) {
	for name, c := range map[string]struct {
		fails int
		made  bool
	}{"at first": {2, true}, "ever": {1000, false}} {
		t.Run(name, func(t *testing.T) {
			count := filepath.Join(t.TempDir(), "count")
			tool := script(t, fmt.Sprintf("echo >>%s\n[ $(wc -l <%s) -gt %d ] || { echo 'Error when deleting file x: Operation not permitted' >&2; echo 'qemu-img: x: Unable to get accurate CPU usage' >&2; exit 1; }", count, count, c.fails))
			tool.quarters = nil // it counts its runs in a file; a sandbox has no place for that
			err := tool.makeFormat(t.Context(), empty(t, "image"), Plan{Format: LUKS, Virtual: 1 << 20, Encryption: &Encryption{Passphrase: []byte("x")}})
			if (err == nil) != c.made {
				t.Errorf("got %v", err)
			}
			if lines, err := os.ReadFile(count); err != nil || len(lines) > lockTries {
				t.Errorf("%d attempts, %v", len(lines), err)
			}
		})
	}
}
