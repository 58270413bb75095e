package workload

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"syscall"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// maxComplaint is how much of what a program says on its standard error is kept.
const maxComplaint = 4 << 10

// ending is how long a program that was asked to end has for it.
const ending = 10 * time.Second

// bounded keeps the first so many bytes and counts the rest.
type bounded struct {
	bytes.Buffer
	most int
	lost int
}

func (b *bounded) Write(p []byte) (int, error) {
	room := min(len(p), b.most-b.Len())
	b.lost += len(p) - room
	b.Buffer.Write(p[:room])
	return len(p), nil
}

// program runs one to its end and gives what it says, as follow does.
func program(ctx context.Context, mostOutput int, name string, args ...string) ([]byte, error) {
	out := bounded{most: mostOutput}
	err := follow(ctx, &out, name, args...)
	switch {
	case out.lost > 0:
		return nil, fault.New(fault.Invalid, fault.Host, "%s said more than %d bytes", name, mostOutput)
	case err != nil:
		return nil, err
	}
	return out.Bytes(), nil
}

// follow runs a program to its end and gives what it says to out while it says it.
// When ctx ends it is asked to end, and then made to, which is no error; what it
// says then still counts. A program of which out takes no more is ended by that.
func follow(ctx context.Context, out io.Writer, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fault.New(fault.NotFound, fault.Host, "there is no %s here: install Debian's package %s", name, name)
	}
	first, complaint := bounded{most: maxExample + 1}, bounded{most: maxComplaint}
	c := exec.CommandContext(ctx, path, args...)
	c.Stdout, c.Stderr = io.MultiWriter(&first, out), &complaint
	// A group of its own, so that no child stays behind.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGINT) }
	c.WaitDelay = ending
	if err := c.Run(); err != nil && ctx.Err() == nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "%s failed: %s %s", name, clip(first.String()), clip(complaint.String()))
	}
	return nil
}
