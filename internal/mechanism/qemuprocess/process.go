package qemuprocess

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Process is a running program. An earlier daemon may have started it. PID and
// StartTime together identify it for as long as the host is up.
//
// Its end is watched through a pidfd in the runtime's poller: one goroutine
// and no thread for each, until the process ends or Release is called.
type Process struct {
	PID       int
	StartTime uint64 // clock ticks since the host started

	pidfd   *os.File
	raw     syscall.RawConn
	exited  chan struct{}
	release sync.Once
	exit    Exit // set before exited is closed
}

// Exit says how a process ended.
type Exit struct {
	Known  bool           // false when it was not this daemon's child: only that it ended is known
	Code   int            // exit status, when no signal ended it
	Signal syscall.Signal // signal that ended it, or 0
}

func (e Exit) String() string {
	switch {
	case !e.Known:
		return "ended in an unknown way"
	case e.Signal != 0:
		return fmt.Sprintf("was ended by signal %d (%s)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("ended with status %d", e.Code)
}

// Adopt attaches to a process that another process started. It refuses, with
// fault.NotFound, when the process has ended, and also when its PID now belongs
// to a different one.
func Adopt(pid int, startTime uint64) (*Process, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		return nil, fault.New(fault.NotFound, fault.Host, "process %d has ended", pid)
	case err != nil:
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot attach to process %d", pid)
	}
	p, err := newProcess(pid, pidfd)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return nil, fault.New(fault.NotFound, fault.Host, "process %d has ended", pid)
	case err != nil:
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot attach to process %d", pid)
	case p.StartTime != startTime:
		p.Release()
		return nil, fault.New(fault.NotFound, fault.Host, "process %d has ended and its number belongs to another", pid)
	}
	return p, nil
}

// newProcess makes a Process from a pidfd, which the Process owns from here on.
func newProcess(pid, pidfd int) (*Process, error) {
	// The poller accepts only a descriptor that does not block.
	if err := unix.SetNonblock(pidfd, true); err != nil {
		_ = unix.Close(pidfd)
		return nil, err
	}
	p := &Process{PID: pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd"), exited: make(chan struct{})}
	var err error
	if p.raw, err = p.pidfd.SyscallConn(); err == nil {
		p.StartTime, err = startTime(pid)
	}
	if err == nil {
		// The process still exists, so the start time that was read is its own.
		err = p.Signal(0)
	}
	if err != nil {
		_ = p.pidfd.Close()
		return nil, err
	}
	go p.waitForExit()
	return p, nil
}

// waitForExit reaps the process when it ends. It stops early when Release closes
// the pidfd.
func (p *Process) waitForExit() {
	err := p.raw.Read(func(fd uintptr) bool {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(ready, 0); err != nil || n == 0 {
			return false
		}
		p.exit = reap(p.PID, int(fd))
		return true
	})
	if err == nil {
		close(p.exited)
		p.Release()
	}
}

// reap collects a child that has ended. It first checks the child through the pidfd: this
// proves that the PID still belongs to it, and that it is a child.
func reap(pid, pidfd int) Exit {
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PIDFD, pidfd, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		return Exit{}
	}
	var status unix.WaitStatus
	if got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); err != nil || got != pid {
		return Exit{}
	}
	if status.Signaled() {
		return Exit{Known: true, Signal: status.Signal()}
	}
	return Exit{Known: true, Code: status.ExitStatus()}
}

// Exited is closed when the process has ended. After Release it never is.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Exit says how the process ended; ask only once Exited is closed.
func (p *Process) Exit() Exit { return p.exit }

// Signal sends a signal to exactly this process. The error is unix.ESRCH if it has
// ended, and os.ErrClosed if it was released.
func (p *Process) Signal(sig syscall.Signal) error {
	var sent error
	err := p.raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	if err == nil {
		return sent
	}
	select {
	case <-p.exited:
		return unix.ESRCH
	default:
		return os.ErrClosed
	}
}

// Kill kills the process. It is no error if the process has ended.
func (p *Process) Kill() error {
	err := p.Signal(unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot kill process %d", p.PID)
}

// Release stops watching and lets the process run on.
func (p *Process) Release() { p.release.Do(func() { _ = p.pidfd.Close() }) }

// startTime reads field 22 of /proc/PID/stat.
func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, field 2, may contain anything: fields are counted from its closing bracket.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const field = 22 - 3
	if len(fields) <= field {
		return 0, fmt.Errorf("cannot read the start time of process %d", pid)
	}
	return strconv.ParseUint(string(fields[field]), 10, 64)
}
