package hostnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Process identifies one process, so that it is never confused with a later one
// that gets the same PID. Records keep it across restarts of the daemon.
type Process struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // clock ticks after boot, field 22 of /proc/PID/stat
}

// handle is a process held by its pidfd: signals and the wait for its end
// can never reach another process.
type handle struct {
	Process
	fd   *os.File
	gone chan struct{} // closed when the process has ended
}

// hold opens a pidfd of a running process and checks that its command line contains
// word. With want given, its start time must match too.
func hold(pid int, word string, want *Process) (*handle, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("no process %d: %w", pid, err)
	}
	h := &handle{Process: Process{PID: pid}, fd: os.NewFile(uintptr(fd), "pidfd"), gone: make(chan struct{})}
	if err := h.identify(word, want); err != nil {
		h.release()
		return nil, err
	}
	go h.watch()
	return h, nil
}

// identify reads the identity of the process. The pidfd is open already, so the
// values that are read belong to the process held or to none.
func (h *handle) identify(word string, want *Process) error {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", h.PID))
	if err != nil {
		return err
	}
	if !bytes.Contains(line, []byte(word)) {
		return fmt.Errorf("process %d is another program", h.PID)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.PID))
	if err != nil {
		return err
	}
	if h.Started, err = startTime(string(stat)); err != nil {
		return err
	}
	if want != nil && want.Started != h.Started {
		return fmt.Errorf("process %d started at another time", h.PID)
	}
	return nil
}

// startTime takes field 22 out of a line of /proc/PID/stat; the second field
// is in brackets and may itself hold blanks and brackets.
func startTime(stat string) (uint64, error) {
	_, rest, ok := cutLast(stat, ") ")
	fields := strings.Fields(rest)
	const startField = 22 - 3 // the cut leaves field 3 first
	if !ok || len(fields) <= startField {
		return 0, fmt.Errorf("cannot read the start time of a process from %q", stat)
	}
	return strconv.ParseUint(fields[startField], 10, 64)
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// signal sends a signal; a process that has ended is not an error.
func (h *handle) signal(sig syscall.Signal) error {
	conn, err := h.fd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(sent, syscall.ESRCH) {
		return nil
	}
	return sent
}

// watch closes gone when the process has ended. It is the handle's one
// goroutine and ends with the process or with release.
func (h *handle) watch() {
	conn, err := h.fd.SyscallConn()
	if err != nil {
		return
	}
	over := false
	err = conn.Read(func(fd uintptr) bool {
		over = ended(int(fd))
		return over
	})
	if err == nil && over {
		close(h.gone)
	}
}

func ended(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1
}

// release lets go of the process, which runs on.
func (h *handle) release() { _ = h.fd.Close() }

// wait returns when the process has ended, or with the context's cause.
func (h *handle) wait(ctx context.Context) error {
	select {
	case <-h.gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end asks the process to end, and kills it after a grace time.
func (h *handle) end(ctx context.Context, grace time.Duration) error {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := h.signal(sig); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot signal process %d", h.PID)
		}
		bounded, cancel := context.WithTimeoutCause(ctx, grace,
			fault.New(fault.Timeout, fault.Host, "process %d does not end %v after signal %v", h.PID, grace, sig))
		err := h.wait(bounded)
		cancel()
		if err == nil {
			return nil
		}
		if sig == syscall.SIGKILL || ctx.Err() != nil {
			return err
		}
	}
	return nil
}
