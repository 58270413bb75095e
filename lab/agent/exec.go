package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// quiet is for how long a program that has ended may leave its pipes open and
// empty: a daemon that it started may hold them for ever.
const quiet = 200 * time.Millisecond

var errTimedOut = errors.New("the program's time is over")

// execute runs a program in a session of its own and waits for it. When nobody
// waits any more it is killed with its children.
func execute(c *call, p wire.Program) (any, error) {
	if len(p.Argv) == 0 {
		return nil, fault.New(fault.Invalid, fault.Agent, "no program named")
	}
	ctx := c.ctx
	if p.Timeout > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, p.Timeout, errTimedOut)
		defer cancel()
		ctx = limited
	}
	program := exec.CommandContext(ctx, p.Argv[0], p.Argv[1:]...)
	program.Dir, program.Env = p.Dir, append(os.Environ(), p.Env...)
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	program.Cancel = func() error { return unix.Kill(-program.Process.Pid, unix.SIGKILL) }
	pipes, err := openPipes()
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Agent, "cannot run %s", p.Argv[0])
	}
	program.Stdin, program.Stdout, program.Stderr = pipes.theirs[0], pipes.theirs[1], pipes.theirs[2]
	err = program.Start()
	closeAll(pipes.theirs)
	if err != nil {
		closeAll(pipes.ours)
		return nil, fault.Wrap(err, fault.Failed, fault.Agent, "cannot run %s", p.Argv[0])
	}
	pipes.attend(c, program)
	if cause := context.Cause(c.ctx); cause != nil {
		return nil, fault.Wrap(cause, fault.Aborted, fault.Agent, "%s was ended", p.Argv[0])
	}
	timedOut := errors.Is(context.Cause(ctx), errTimedOut)
	return wire.Exit{Status: status(program.ProcessState), TimedOut: timedOut}, nil
}

// status is the exit status as a shell would give it.
func status(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return s.ExitCode()
}

// pipes are three, of which the program gets the far ends.
type pipes struct {
	ours, theirs [3]*os.File
	exited       atomic.Bool
}

func openPipes() (*pipes, error) {
	p := &pipes{}
	for i := range p.ours {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(p.ours)
			closeAll(p.theirs)
			return nil, err
		}
		if i == 0 {
			p.ours[i], p.theirs[i] = w, r
		} else {
			p.ours[i], p.theirs[i] = r, w
		}
	}
	return p, nil
}

func closeAll(files [3]*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// attend feeds and reads a program until it has ended and its output is read.
func (p *pipes) attend(c *call, program *exec.Cmd) {
	var copies sync.WaitGroup
	copies.Go(func() {
		_, _ = io.Copy(p.ours[0], c.input)
		_ = p.ours[0].Close()
	})
	copies.Go(func() { p.drain(p.ours[1], c.outlets[wire.Output]) })
	copies.Go(func() { p.drain(p.ours[2], c.outlets[wire.Errors]) })
	_ = program.Wait() // its state tells more
	p.exited.Store(true)
	for _, file := range p.ours[1:] {
		_ = file.SetReadDeadline(time.Now().Add(quiet))
	}
	_ = p.ours[0].SetWriteDeadline(time.Now())
	c.input.Finish(io.EOF)
	copies.Wait()
}

// drain copies a stream of the program's until its end, or until the program has
// ended and nothing came for a while. A deadline may have passed while the host
// was slow to take what came before, so that only a second one in a row counts.
func (p *pipes) drain(from *os.File, to *wire.Outlet) {
	defer from.Close()
	buffer := make([]byte, wire.MaxPayload)
	for silent := 0; silent < 2; {
		if p.exited.Load() {
			_ = from.SetReadDeadline(time.Now().Add(quiet))
		}
		n, err := from.Read(buffer)
		if n > 0 {
			silent = 0
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			silent++
		case err != nil:
			_ = to.Close()
			return
		}
	}
	_ = to.Close()
}
