package bare

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Process is a QEMU that Run has started. End it.
type Process struct {
	command *exec.Cmd
	monitor net.Conn
	said    *os.File // standard error
	exited  chan struct{}
}

const maxLine = 1 << 20 // bytes of one line of the monitor

// Run starts the command, and returns when the monitor has answered query-status.
// Took is the time from just before the process is made until that answer.
func (c *Command) Run(ctx context.Context) (p *Process, took time.Duration, err error) {
	path := filepath.Join(c.dir, "monitor")
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, 0, fault.Wrap(err, fault.Failed, fault.Monitor, "cannot listen for QEMU")
	}
	defer listener.Close()
	socket, err := listener.(*net.UnixListener).File()
	if err != nil {
		return nil, 0, fault.Wrap(err, fault.Failed, fault.Monitor, "cannot listen for QEMU")
	}
	defer socket.Close()
	said, err := os.Create(filepath.Join(c.dir, "stderr"))
	if err != nil {
		return nil, 0, fault.Wrap(err, fault.Failed, fault.Monitor, "cannot keep what QEMU says")
	}
	// The process is ended by End and not with the context, so that the way it
	// ended can be told.
	command := exec.CommandContext(context.WithoutCancel(ctx), c.Binary, c.Args...)
	command.Env, command.ExtraFiles, command.Stderr = c.Env, []*os.File{socket}, said
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p = &Process{command: command, said: said, exited: make(chan struct{})}

	begin := time.Now()
	if err := command.Start(); err != nil {
		said.Close()
		return nil, 0, fault.Wrap(err, fault.Failed, fault.Domain, "cannot start %s", c.Binary)
	}
	go p.reap()
	// With QEMU's death its socket must go too, or the monitor would wait for ever.
	socket.Close()
	if err = p.connect(ctx, path, listener); err == nil {
		return p, time.Since(begin), nil
	}
	err = fault.Wrap(err, fault.Of(err), fault.Monitor, "QEMU did not answer%s", p.lastWords())
	if _, ending := p.End(context.WithoutCancel(ctx)); ending != nil {
		return nil, 0, fmt.Errorf("%w; %w", err, ending)
	}
	return nil, 0, err
}

func (p *Process) reap() {
	defer close(p.exited)
	_ = p.command.Wait() // QEMU that is told to end says so by a status that nobody needs
}

// connect reaches the monitor, over a connection that waits in the socket's
// queue until QEMU takes it, and has it answer.
func (p *Process) connect(ctx context.Context, path string, listener net.Listener) error {
	monitor, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Monitor, "cannot connect")
	}
	p.monitor = monitor
	listener.Close()
	stop := context.AfterFunc(ctx, func() { _ = monitor.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	lines := bufio.NewReader(io.LimitReader(monitor, maxLine))
	if err := await(lines, "QMP"); err != nil {
		return err
	}
	for _, command := range []string{"qmp_capabilities", "query-status"} {
		if _, err := fmt.Fprintf(monitor, "{\"execute\":%q}\n", command); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Monitor, "cannot say %s", command)
		}
		if err := await(lines, "return"); err != nil {
			return fault.Wrap(err, fault.Of(err), fault.Monitor, "no answer to %s", command)
		}
	}
	return nil
}

// await reads on to the message that has a key, over events.
func await(lines *bufio.Reader, key string) error {
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Monitor, "the monitor has ended")
		}
		var message map[string]json.RawMessage
		if err := json.Unmarshal(line, &message); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Monitor, "this is no monitor")
		}
		if text, ok := message["error"]; ok {
			return fault.New(fault.Failed, fault.Monitor, "refused: %s", text)
		}
		if _, ok := message[key]; ok {
			return nil
		}
	}
}

// endPatience is how long QEMU has to end when it is asked to.
const endPatience = 10 * time.Second

// End asks QEMU to end as its daemon would, by SIGTERM, and returns when it has
// been reaped. Took is the time for both. QEMU that does not hear is killed.
func (p *Process) End(ctx context.Context) (took time.Duration, err error) {
	defer p.said.Close()
	if p.monitor != nil {
		defer p.monitor.Close()
	}
	ctx, stop := context.WithTimeout(ctx, endPatience)
	defer stop()
	begin := time.Now()
	_ = p.command.Process.Signal(syscall.SIGTERM) // one that has ended is awaited below
	select {
	case <-p.exited:
		return time.Since(begin), nil
	case <-ctx.Done():
	}
	_ = p.command.Process.Kill()
	<-p.exited
	return 0, fault.Wrap(context.Cause(ctx), fault.Timeout, fault.Domain, "QEMU did not end by itself and was killed")
}

// lastWords is what QEMU said about itself, for the error of a start.
func (p *Process) lastWords() string {
	text := make([]byte, 1000)
	n, _ := p.said.ReadAt(text, 0)
	if n == 0 {
		return ""
	}
	return " and says: " + strings.TrimSpace(string(text[:n]))
}
