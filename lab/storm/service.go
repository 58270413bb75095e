package storm

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// service is a daemon's command that the lab has started and will end.
type service struct {
	command *exec.Cmd
	log     *os.File // what it says
	ended   chan struct{}
}

// servicePatience is how long a daemon has to end, with all it still runs.
const servicePatience = 60 * time.Second

// launch starts a command line of the shell. What it says is added to a file.
func launch(ctx context.Context, line, path string) (*service, error) {
	log, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot keep what a daemon says")
	}
	// It is ended by end and not with the context, because tidying up needs it.
	command := exec.CommandContext(context.WithoutCancel(ctx), "sh", "-c", "exec "+line)
	command.Stdout, command.Stderr = log, log
	// The terminal's interrupt is for the lab, which ends it in its time.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := command.Start(); err != nil {
		log.Close()
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot start %q", line)
	}
	s := &service{command: command, log: log, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		_ = command.Wait() // how it ended shows by what it said
	}()
	return s, nil
}

func (s *service) end() error {
	defer s.log.Close()
	_ = s.command.Process.Signal(syscall.SIGTERM) // one that has ended is awaited below
	late := time.NewTimer(servicePatience)
	defer late.Stop()
	select {
	case <-s.ended:
		return nil
	case <-late.C:
	}
	// A shell between hears no SIGKILL of the daemon's: the whole group is meant.
	_ = syscall.Kill(-s.command.Process.Pid, syscall.SIGKILL)
	<-s.ended
	return fault.New(fault.Timeout, fault.Host, "%q did not end within %s and was killed%s", strings.Join(s.command.Args[2:], " "), servicePatience, s.lastWords())
}

// lastWords is the end of what it said, for an error.
func (s *service) lastWords() string {
	const most = 1000
	text := make([]byte, most)
	size, err := s.log.Seek(0, 2)
	if err != nil || size == 0 {
		return ""
	}
	n, _ := s.log.ReadAt(text, max(0, size-most))
	return "; it says: " + strings.TrimSpace(string(text[:n]))
}

// is reports whether the command is a process itself, and no other that it started.
func (s *service) is(pid int) bool { return s.command.Process.Pid == pid }
