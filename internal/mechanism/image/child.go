package image

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

// Bounds on a qemu-img process. Memory is generous because a big qcow2 keeps
// its tables in it, and because address space is not memory in use.
const (
	maxMemory   = 8 << 30         // bytes of address space
	maxSaid     = 64 << 10        // bytes kept of what it says
	shortWork   = 2 * time.Minute // deadline of what copies no data
	niceness    = 10
	firstFile   = 3 // the descriptor of the first file passed
	waitForPipe = 5 * time.Second
	// stoppedTime is how long a process may be stopped by a signal before it is
	// ended: it holds its volume, and whoever waits for that, for ever.
	stoppedTime = 30 * time.Second
)

// Tool is the qemu-img program of this host. A nil one makes and resizes raw
// images, which need no tool, and refuses all else.
type Tool struct {
	path     string
	log      *slog.Logger
	quarters *sandbox.Isolation
	stopped  time.Duration // 0: stoppedTime
}

// FindTool finds qemu-img, which is to run in these quarters.
func FindTool(quarters *sandbox.Isolation, log *slog.Logger) (*Tool, error) {
	path, err := exec.LookPath("qemu-img")
	if err != nil {
		return nil, fault.Wrap(err, fault.Unsupported, fault.Host, "cannot find qemu-img; install the package qemu-utils")
	}
	return &Tool{path: path, log: log, quarters: quarters}, nil
}

// bounds are those of one run of the tool.
type bounds struct {
	cpu  time.Duration // of processor time; 0: unbounded
	file uint64        // bytes of the image that it writes
}

// roomFor is how large the file of an image may become that shows a guest so many
// bytes: with its tables, of every format, and some.
func roomFor(virtual uint64) uint64 { return virtual + virtual/8 + 1<<30 }

// run runs the tool with files passed as descriptors from firstFile on, and
// hands what it prints to said. It returns when the process has ended, which a
// cancelled ctx makes it do at once.
func (t *Tool) run(ctx context.Context, b bounds, files []*os.File, said io.Writer, args ...string) error {
	if t == nil {
		return fault.New(fault.Unsupported, fault.Config, "qemu-img is not installed; install the package qemu-utils")
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, t.path, args...)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "MALLOC_ARENA_MAX=2"}
	cmd.Dir = "/"
	cmd.ExtraFiles = files
	cmd.Stdout, cmd.Stderr = said, &limited{to: &complaint, left: maxSaid}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = waitForPipe

	// The kernel sends the signal of Pdeathsig when the thread that forked ends,
	// so that thread has to stay for as long as the child does.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t.log.Debug("run", "tool", t.path, "args", args)
	start := t.start
	if t.quarters != nil {
		start = t.startApart
	}
	done, err := start(cmd, b)
	if err != nil {
		return err
	}
	defer done()
	go t.watch(ctx, end, cmd.Process.Pid)
	return t.verdict(ctx, cmd.Wait(), complaint.String())
}

// watch ends a process that has been stopped for too long. It ends with ctx.
func (t *Tool) watch(ctx context.Context, end context.CancelCauseFunc, pid int) {
	limit := cmp.Or(t.stopped, stoppedTime)
	tick := time.NewTicker(limit / 6)
	defer tick.Stop()
	last := time.Now() // when it was not stopped
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if !isStopped(pid) {
				last = now
			} else if now.Sub(last) >= limit {
				end(fault.New(fault.Timeout, fault.Volume, "its process %d has been stopped by a signal for %v", pid, limit))
				return
			}
		}
	}
}

// isStopped reads the state of a process, which stands behind its name in brackets.
func isStopped(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	at := bytes.LastIndex(text, []byte(") "))
	return at >= 0 && at+2 < len(text) && (text[at+2] == 'T' || text[at+2] == 't')
}

// start starts the tool as the daemon is.
func (t *Tool) start(cmd *exec.Cmd, b bounds) (done func(), err error) {
	if err := cmd.Start(); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Volume, "cannot run %s", t.path)
	}
	if err := restrain(cmd.Process.Pid, b); err != nil {
		_ = cmd.Cancel() // it is not to run unbounded
		_ = cmd.Wait()   // ended by us
		return nil, err
	}
	return func() {}, nil
}

// restrain sets the limits of a process that has just started. That it leaves no core it
// has from the daemon.
func restrain(pid int, b bounds) error {
	limits := map[int]unix.Rlimit{
		unix.RLIMIT_AS: {Cur: maxMemory, Max: maxMemory},
	}
	if b.file > 0 {
		limits[unix.RLIMIT_FSIZE] = unix.Rlimit{Cur: b.file, Max: b.file}
	}
	if b.cpu > 0 {
		seconds := uint64(b.cpu / time.Second)
		limits[unix.RLIMIT_CPU] = unix.Rlimit{Cur: seconds, Max: seconds + 1}
	}
	for which, limit := range limits {
		if err := unix.Prlimit(pid, which, &limit, nil); err != nil && !errors.Is(err, unix.ESRCH) {
			return fault.Wrap(err, fault.Failed, fault.Volume, "cannot limit qemu-img")
		}
	}
	if err := unix.Setpriority(unix.PRIO_PGRP, pid, niceness); err != nil && !errors.Is(err, unix.ESRCH) {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot lower the priority of qemu-img")
	}
	return nil
}

// verdict makes the error of how the tool ended and of what it complained.
func (t *Tool) verdict(ctx context.Context, err error, complaint string) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		return fault.Wrap(cause, fault.Of(cause), fault.Volume, "qemu-img was ended")
	}
	text := gist(complaint)
	switch {
	case strings.Contains(text, "Failed to get"): // "... lock": QEMU's own words for an image in use
		return fault.New(fault.Busy, fault.Volume, "the image is in use by a guest or by another tool: %s", text)
	case strings.Contains(text, "No space left"):
		return fault.New(fault.NoCapacity, fault.Volume, "the file system is full: %s", text)
	case strings.Contains(text, "Permission denied"):
		return fault.New(fault.Failed, fault.Volume, "%s: the image's file system refuses qemu-img what it let the daemon open, as NFS with root_squash may; export it with no_root_squash", text)
	case text == "":
		return fault.Wrap(err, fault.Failed, fault.Volume, "qemu-img failed and gave no reason")
	}
	return fault.New(fault.Failed, fault.Volume, "qemu-img failed: %s", text)
}

// gist is the first line of a complaint, without the tool's name. That the tool
// could not remove what it failed to make is none: it was handed that, and it stays.
func gist(complaint string) string {
	for line := range strings.Lines(complaint) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "qemu-img: ")
		if line != "" && !strings.HasPrefix(strings.TrimPrefix(line, "warning: "), "Error when deleting file") {
			return line
		}
	}
	return ""
}

// limited keeps the first bytes written to it and drops the rest, so that a
// tool that talks without end costs nothing.
type limited struct {
	to   *bytes.Buffer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.to.Write(p[:n])
	l.left -= n
	return len(p), nil
}
