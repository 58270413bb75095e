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
	maxSaid     = 64 << 10        // bytes kept of its output
	shortWork   = 2 * time.Minute // deadline of a run that copies no data
	niceness    = 10
	firstFile   = 3 // the descriptor of the first file passed
	waitForPipe = 5 * time.Second
	// stoppedTime is how long a process may stay stopped by a signal before it is killed. It holds its
	// volume, and others wait for that.
	stoppedTime = 30 * time.Second
)

// Tool is the qemu-img program of this host. A nil Tool makes and resizes raw images, which needs no
// qemu-img, and refuses everything else.
type Tool struct {
	path     string
	log      *slog.Logger
	quarters *sandbox.Isolation
	stopped  time.Duration // 0: stoppedTime
}

// FindTool finds qemu-img. It will run in the given isolation.
func FindTool(quarters *sandbox.Isolation, log *slog.Logger) (*Tool, error) {
	path, err := exec.LookPath("qemu-img")
	if err != nil {
		return nil, fault.Wrap(err, fault.Unsupported, fault.Host, "cannot find qemu-img; install the package qemu-utils")
	}
	return &Tool{path: path, log: log, quarters: quarters}, nil
}

// bounds are the limits of one run of qemu-img.
type bounds struct {
	cpu  time.Duration // processor time; 0: no limit
	file uint64        // bytes of the image that it writes
}

// maxFileSize bounds the file of an image with this virtual size, in bytes: metadata of every format
// included.
func maxFileSize(virtual uint64) uint64 { return virtual + virtual/8 + 1<<30 }

// run runs qemu-img with files as descriptors from firstFile on, and writes its output to said. It returns
// when the process has ended; when ctx ends, the process is killed.
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
	cmd.Stdout, cmd.Stderr = said, &limitedBuffer{to: &complaint, left: maxSaid}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = waitForPipe

	// The kernel sends the signal of Pdeathsig when the thread that forked ends, so the thread must stay
	// as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t.log.Debug("run", "tool", t.path, "args", args)
	start := t.start
	if t.quarters != nil {
		start = t.startSandboxed
	}
	done, err := start(cmd, b)
	if err != nil {
		return err
	}
	defer done()
	go t.endWhenStopped(ctx, end, cmd.Process.Pid)
	return t.exitError(ctx, cmd.Wait(), complaint.String())
}

// endWhenStopped kills a process that has been stopped for too long. It returns when ctx ends.
func (t *Tool) endWhenStopped(ctx context.Context, end context.CancelCauseFunc, pid int) {
	limit := cmp.Or(t.stopped, stoppedTime)
	tick := time.NewTicker(limit / 6)
	defer tick.Stop()
	last := time.Now() // last time at which it was not stopped
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

// isStopped reads the state of a process from /proc/PID/stat; it follows the name in brackets.
func isStopped(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	at := bytes.LastIndex(text, []byte(") "))
	return at >= 0 && at+2 < len(text) && (text[at+2] == 'T' || text[at+2] == 't')
}

// start starts qemu-img without a sandbox.
func (t *Tool) start(cmd *exec.Cmd, b bounds) (done func(), err error) {
	if err := cmd.Start(); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Volume, "cannot run %s", t.path)
	}
	if err := setLimits(cmd.Process.Pid, b); err != nil {
		_ = cmd.Cancel() // it must not run without limits
		_ = cmd.Wait()   // killed above
		return nil, err
	}
	return func() {}, nil
}

// setLimits sets the limits of a process that has just started. It inherits from the daemon that it writes
// no core file.
func setLimits(pid int, b bounds) error {
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

// exitError makes an error from the exit status and error output of qemu-img.
func (t *Tool) exitError(ctx context.Context, err error, complaint string) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		return fault.Wrap(cause, fault.Of(cause), fault.Volume, "qemu-img was killed")
	}
	text := firstComplaint(complaint)
	switch {
	case strings.Contains(text, "Failed to get"): // "... lock": QEMU's own words for an image in use
		return fault.New(fault.Busy, fault.Volume, "the image is in use by a guest or by another tool: %s", text)
	case strings.Contains(text, "No space left"):
		return fault.New(fault.NoCapacity, fault.Volume, "the file system is full: %s", text)
	case strings.Contains(text, "Permission denied"):
		return fault.New(fault.Failed, fault.Volume, "%s: the image's file system refuses qemu-img a file that the daemon could open, as NFS with root_squash may; export it with no_root_squash", text)
	case text == "":
		return fault.Wrap(err, fault.Failed, fault.Volume, "qemu-img failed and gave no reason")
	}
	return fault.New(fault.Failed, fault.Volume, "qemu-img failed: %s", text)
}

// firstComplaint returns the first line of the error output, without the tool's name. A failure to remove
// the unfinished image is skipped: the file was handed over and stays.
func firstComplaint(complaint string) string {
	for line := range strings.Lines(complaint) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "qemu-img: ")
		if line != "" && !strings.HasPrefix(strings.TrimPrefix(line, "warning: "), "Error when deleting file") {
			return line
		}
	}
	return ""
}

// limitedBuffer keeps the first bytes written to it and drops the rest, so that endless output costs no
// memory.
type limitedBuffer struct {
	to   *bytes.Buffer
	left int
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.to.Write(p[:n])
	l.left -= n
	return len(p), nil
}
