package bare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// machineless is a QEMU that is up at once, because it has no machine.
func machineless(t *testing.T, name string) *Command {
	t.Helper()
	binary, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("no QEMU here: ", err)
	}
	return &Command{
		Binary: binary, Env: []string{"LODGE_TEST=" + name}, dir: t.TempDir(),
		Args: []string{
			"-name", "guest=" + name, "-nodefaults", "-no-user-config", "-display", "none", "-machine", "none",
			"-chardev", "socket,id=m,fd=3,server=on,wait=off", "-mon", "chardev=m,mode=control",
		},
	}
}

func run(t *testing.T, c *Command) *Process {
	t.Helper()
	p, took, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if took <= 0 {
		t.Errorf("it took %s", took)
	}
	return p
}

func end(t *testing.T, p *Process) {
	t.Helper()
	if took, err := p.End(context.Background()); err != nil || took <= 0 {
		t.Errorf("ended after %s: %v", took, err)
	}
	if err := p.command.Process.Signal(syscall.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("QEMU is still there: %v", err)
	}
}

func TestARunningGuestIsRunAgainBesideItself(t *testing.T) {
	name := fmt.Sprintf("lodge-test-%d", os.Getpid())
	original := run(t, machineless(t, name))
	defer end(t, original)
	copied, err := Of(name, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(copied.Args, original.command.Args[1:]) || !slices.Equal(copied.Env, original.command.Env) {
		t.Errorf("the copy runs %q with %q", copied.Args, copied.Env)
	}
	for range 2 {
		end(t, run(t, copied))
	}
}

func TestWhatQEMUSaysIsTold(t *testing.T) {
	c := machineless(t, "lodge-test-refused")
	c.Args = append(c.Args, "-object", "no-such-type,id=x")
	if _, _, err := c.Run(t.Context()); !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "no-such-type") {
		t.Errorf("got %v", err)
	}
}

func TestAProgramThatNeverAnswersIsNotAwaitedForEver(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	// It holds the socket open, so that only the deadline can end the wait.
	c := &Command{Binary: "/bin/sh", Args: []string{"-c", "exec sleep 60"}, dir: t.TempDir()}
	if _, _, err := c.Run(ctx); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
