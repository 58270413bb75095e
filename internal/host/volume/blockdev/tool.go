package blockdev

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
)

const (
	// ToolTime bounds one run of a tool that reads or changes devices.
	ToolTime = 30 * time.Second
	// killTime is how long a killed tool may take to end before it is left behind.
	killTime  = 5 * time.Second
	maxStderr = 64 << 10 // bytes kept of a tool's standard error
	maxStdout = 8 << 20  // bytes kept of its standard output
)

// ToolPath is where the host's tools are, whatever the daemon's own PATH.
// Tests put tools of their own in front.
var ToolPath = "/usr/sbin:/usr/bin:/sbin:/bin"

// NeedTool returns fault.Unsupported if a program is not installed. The error
// names the program and, unless pack is "", the package to install.
func NeedTool(name, pack string) error {
	for dir := range strings.SplitSeq(ToolPath, ":") {
		if unix.Access(filepath.Join(dir, name), unix.X_OK) == nil {
			return nil
		}
	}
	if pack == "" {
		return fault.New(fault.Unsupported, fault.Config, "%s is not installed", name)
	}
	return fault.New(fault.Unsupported, fault.Config, "%s is not installed; install the package %s", name, pack)
}

// Run runs a tool to its end and returns its standard output. It returns
// fault.Timeout after limit, and an *ExitError if the tool fails.
func Run(ctx context.Context, limit time.Duration, name string, args ...string) (string, error) {
	return RunInput(ctx, limit, "", name, args...)
}

// RunInput is Run with text for the tool's standard input.
func RunInput(ctx context.Context, limit time.Duration, input, name string, args ...string) (string, error) {
	if err := NeedTool(name, ""); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fault.New(fault.Timeout, fault.Pool, "%s did not end within %v", name, limit))
	defer cancel()
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, "/usr/bin/env", append([]string{"PATH=" + ToolPath, name}, args...)...)
	cmd.Env = []string{"LC_ALL=C"}
	cmd.Dir = "/"
	if input != "" {
		cmd.Stdin = strings.NewReader(input)
	}
	cmd.Stdout, cmd.Stderr = &boundedBuffer{to: &out, max: maxStdout}, &boundedBuffer{to: &complaint, max: maxStderr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	// A process that waits for a file system may outlast even its killing.
	lasting, letGo := context.WithTimeout(context.WithoutCancel(ctx), limit+killTime)
	defer letGo()
	err := fsguard.RunLong(lasting, name, cmd.Run)
	switch {
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	}
	text := strings.Join(strings.Fields(complaint.String()), " ")
	if text == "" {
		text = err.Error()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = &ExitError{Code: exit.ExitCode(), stderr: text}
	}
	return out.String(), fault.Wrap(err, fault.Failed, fault.Pool, "%s failed", name)
}

// ExitError is a tool's exit code and the text of its standard error.
type ExitError struct {
	Code   int
	stderr string
}

func (e *ExitError) Error() string { return e.stderr }

// boundedBuffer keeps the first max bytes and drops the rest.
type boundedBuffer struct {
	to  *bytes.Buffer
	max int
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.to.Write(p[:min(len(p), b.max-b.to.Len())])
	return len(p), nil
}
