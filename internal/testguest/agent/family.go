package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// family starts programs and reaps everything that ends: its own children and
// the orphans that the kernel hands to the first process. Nothing else in the
// agent may wait for a process, or the two would steal from each other.
type family struct {
	mu       sync.Mutex
	children map[int]chan unix.WaitStatus // started here and not yet reaped
	more     *sync.Cond                   // a child was started
	idle     chan struct{}                // closed while there is no process left
}

func newFamily() *family {
	f := &family{children: map[int]chan unix.WaitStatus{}, idle: make(chan struct{})}
	f.more = sync.NewCond(&f.mu)
	close(f.idle)
	go f.reap()
	return f
}

// start runs a program with the given files as its first descriptors. Its end
// arrives once on the channel.
func (f *family) start(argv []string, files []*os.File, attr *syscall.SysProcAttr) (int, <-chan unix.WaitStatus, error) {
	fds := make([]uintptr, len(files))
	for i, file := range files {
		fds[i] = file.Fd()
	}
	f.mu.Lock() // until the child is known, its end must not be reaped as an orphan's
	defer f.mu.Unlock()
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Dir: "/", Files: fds, Sys: attr,
		Env: []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin", "HOME=/", "TERM=linux", "PS1=\\h:\\w# "},
	})
	if err != nil {
		return 0, nil, fmt.Errorf("cannot run %s: %w", argv[0], err)
	}
	ended := make(chan unix.WaitStatus, 1)
	f.children[pid] = ended
	select {
	case <-f.idle:
		f.idle = make(chan struct{})
	default:
	}
	f.more.Signal()
	return pid, ended, nil
}

// empty gives a channel that is closed once no other process is left.
func (f *family) empty() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.idle
}

// reap runs as long as the machine does.
func (f *family) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		f.mu.Lock()
		switch {
		case err == nil:
			if ended, ours := f.children[pid]; ours {
				delete(f.children, pid)
				ended <- status
			}
		case errors.Is(err, unix.ECHILD) && len(f.children) == 0:
			select {
			case <-f.idle:
			default:
				close(f.idle)
			}
			f.more.Wait()
		}
		f.mu.Unlock()
	}
}
