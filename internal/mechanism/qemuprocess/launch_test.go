package qemuprocess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// launch starts a shell script and ends it with the test.
func launch(t *testing.T, spec Spec, script string) *Process {
	t.Helper()
	spec.Binary, spec.Args = "/bin/sh", []string{"-c", script}
	p, err := Launch(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill(); ended(t, p) })
	return p
}

func ended(t *testing.T, p *Process) Exit {
	t.Helper()
	select {
	case <-p.Exited():
	case <-time.After(10 * time.Second):
		t.Errorf("process %d does not end", p.PID)
		return Exit{}
	}
	return p.Exit()
}

func TestLaunch_Exit(t *testing.T) {
	for script, want := range map[string]Exit{
		"exit 0":        {Known: true},
		"exit 7":        {Known: true, Code: 7},
		"kill -TERM $$": {Known: true, Signal: syscall.SIGTERM},
	} {
		p := launch(t, Spec{}, script)
		if got := ended(t, p); got != want {
			t.Errorf("%q %s", script, got)
		}
		if err := unix.Kill(p.PID, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("%q left a zombie: %v", script, err)
		}
		if err := p.Kill(); err != nil {
			t.Errorf("killing what has ended: %v", err)
		}
	}
}

func TestKill(t *testing.T) {
	p := launch(t, Spec{}, "trap '' TERM; exec sleep 1000")
	if err := p.Signal(0); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := ended(t, p); got.Signal != syscall.SIGKILL || got.String() != "was ended by signal 9 (killed)" {
		t.Errorf("it %s", got)
	}
}

func TestLaunch_FilesAndEnvironment(t *testing.T) {
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	secret, err := os.Create(filepath.Join(t.TempDir(), "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dir := t.TempDir()
	p := launch(t, Spec{Log: log, Dir: dir, Env: []string{"WORD=lodge"}, Files: []*os.File{nil, w}},
		`echo out; echo err >&2
		[ -e /proc/$$/fd/3 ] && echo 3 is open >&4
		ls -l /proc/$$/fd | grep secret >&4
		echo "$WORD $(pwd)" >&4
		read line || echo no input
		cut -d' ' -f5,6 /proc/$$/stat; echo $$`)
	_ = w.Close()
	passed, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(passed)); got != "lodge "+dir {
		t.Errorf("environment, directory and descriptors: %q", got)
	}
	if got := ended(t, p); got != (Exit{Known: true}) {
		t.Fatalf("it %s", got)
	}
	text, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(p.PID)
	if want := fmt.Sprintf("out\nerr\nno input\n%s %s\n%s\n", pid, pid, pid); string(text) != want {
		t.Errorf("the log says\n%swant (group and session are its own)\n%s", text, want)
	}
}

func TestLaunch_Errors(t *testing.T) {
	_, err := Launch(t.Context(), Spec{Binary: "/no/such/qemu"})
	if !errors.Is(err, os.ErrNotExist) || !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "/no/such/qemu") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	if _, err := Launch(ctx, Spec{Binary: "/bin/true"}); !fault.Is(err, fault.Aborted) {
		t.Errorf("got %v", err)
	}
}

func TestAdopt_OtherProcess(t *testing.T) {
	p := launch(t, Spec{}, "exec sleep 1000")
	if _, err := Adopt(p.PID, p.StartTime+1); !fault.Is(err, fault.NotFound) {
		t.Errorf("a number that was used again: %v", err)
	}
	again, err := Adopt(p.PID, p.StartTime)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Kill(); err != nil {
		t.Fatal(err)
	}
	ended(t, again)
	ended(t, p)
	if _, err := Adopt(p.PID, p.StartTime); !fault.Is(err, fault.NotFound) {
		t.Errorf("a process that has ended: %v", err)
	}
	if _, err := Adopt(-5, 1); err == nil {
		t.Error("adopted a process with a negative number")
	}
}

func TestRelease_ProcessKeepsRunning(t *testing.T) {
	p := launch(t, Spec{}, "exec sleep 1000")
	again, err := Adopt(p.PID, p.StartTime)
	if err != nil {
		t.Fatal(err)
	}
	again.Release()
	again.Release()
	if err := p.Signal(0); err != nil {
		t.Fatal(err)
	}
	select {
	case <-again.Exited():
		t.Error("released is not exited")
	default:
	}
}

// TestLaunch_OutlivesParent: a daemon launches a process and dies, and the next one adopts the
// process.
func TestLaunch_OutlivesParent(t *testing.T) {
	pid, start := launchedByDead(t, "TestLaunch_OutlivesParent", Spec{})
	p, err := Adopt(pid, start)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := ended(t, p); got.Known {
		t.Errorf("somebody else's child %s", got)
	}
}

func TestLaunch_KillWithDaemon(t *testing.T) {
	pid, start := launchedByDead(t, "TestLaunch_KillWithDaemon", Spec{KillWithDaemon: true})
	p, err := Adopt(pid, start)
	if fault.Is(err, fault.NotFound) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Kill() }() // if it is still running
	ended(t, p)
}

// launchedByDead runs the named test again as a daemon that launches a process
// and dies, and returns that process.
func launchedByDead(t *testing.T, test string, spec Spec) (pid int, start uint64) {
	t.Helper()
	if os.Getenv("LODGE_TEST_DAEMON") != "" {
		spec.Binary, spec.Args = "/bin/sleep", []string{"1000"}
		p, err := Launch(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(os.Stdout, "launched %d %d\n", p.PID, p.StartTime)
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	daemon := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$")
	daemon.Env = append(os.Environ(), "LODGE_TEST_DAEMON=1")
	out, err := daemon.Output()
	if err == nil {
		t.Fatal("the daemon did not die")
	}
	if _, err := fmt.Sscanf(string(out), "launched %d %d", &pid, &start); err != nil {
		t.Fatalf("the daemon said %q: %v", out, err)
	}
	return pid, start
}

func TestLaunch_WatchersTakeNoThreads(t *testing.T) {
	threads := func() int {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks)
	}
	before := threads()
	var all []*Process
	for range 100 {
		all = append(all, launch(t, Spec{}, "exec sleep 1000"))
	}
	if more := threads() - before; more > 20 {
		t.Errorf("watching 100 processes took %d threads", more)
	}
	for _, p := range all {
		_ = p.Kill()
	}
	for _, p := range all {
		ended(t, p)
	}
}

func TestListenMonitor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "monitor")
	file, err := ListenMonitor(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatalf("nobody accepts, and connecting fails: %v", err)
	}
	_ = conn.Close()
	if _, err := ListenMonitor(path); !fault.Is(err, fault.Exists) {
		t.Errorf("a socket in use: %v", err)
	}
	_ = file.Close()
	file, err = ListenMonitor(path)
	if err != nil {
		t.Fatalf("a deserted socket: %v", err)
	}
	_ = file.Close()
	plain := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plain, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenMonitor(plain); !fault.Is(err, fault.Exists) {
		t.Errorf("a file that is no socket: %v", err)
	}
	if text, err := os.ReadFile(plain); err != nil || string(text) != "keep" {
		t.Errorf("the file in the way became %q, %v", text, err)
	}
	if _, err := ListenMonitor("/" + strings.Repeat("x", 107)); !fault.Is(err, fault.Invalid) {
		t.Errorf("a path that is too long: %v", err)
	}
}

// A symbolic link in the place of a socket is not connected to: its target may answer any client that
// is root.
func TestRemoveDeserted_SymbolicLink(t *testing.T) {
	dir := t.TempDir()
	other, err := listen(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other) //nolint:errcheck // nothing was written
	link := filepath.Join(dir, "link")
	if err := os.Symlink("other", link); err != nil {
		t.Fatal(err)
	}
	if err := RemoveDeserted(link); err != nil {
		t.Error(err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(other), Events: unix.POLLIN}}, 0); n != 0 {
		t.Errorf("somebody came to the other socket (%v)", err)
	}
	if _, err := os.Lstat(link); err != nil {
		t.Error(err)
	}
}
