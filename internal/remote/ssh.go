package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/remote/pair"
)

// leaving is how long ssh has to end once the connection has.
const leaving = 2 * time.Second

// tunnel is a connection through the standard input and output of a program that
// reaches the daemon. The program is the connection's and ends with it.
type tunnel struct {
	net.Conn
	host    string
	command *exec.Cmd
	words   *words
	ended   chan struct{}
	closing sync.Once
}

// overSSH runs ssh, which runs at the other host what carries bytes to the daemon's
// socket: libvirt's own helper, or nc, or socat.
func (a Address) overSSH(ctx context.Context) (net.Conn, error) {
	near, far, err := pair.New()
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make a connection for ssh")
	}
	defer far.Close()
	program, args := a.ssh()
	t := &tunnel{Conn: near, host: a.Host, words: new(words), ended: make(chan struct{})}
	// It is ended by Close and not with the context, which is that of dialing.
	t.command = exec.CommandContext(context.WithoutCancel(ctx), program, args...)
	t.command.Stdin, t.command.Stdout, t.command.Stderr = far, far, t.words
	// The terminal's interrupt is for the program, which tidies up by this connection.
	t.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	t.command.WaitDelay = leaving // a child of its own may hold its standard error
	if err := t.command.Start(); err != nil {
		near.Close()
		return nil, fault.Wrap(err, fault.NotFound, fault.Host, "cannot run %s to reach %s", program, a.Host)
	}
	go func() {
		defer close(t.ended)
		_ = t.command.Wait() // how it ended is in its state
	}()
	return t, nil
}

// ssh is the command. It never asks a terminal: many connections are made, and at
// any time. It notices a host that is gone.
func (a Address) ssh() (program string, args []string) {
	program = "ssh"
	if a.command != "" {
		program = a.command
	}
	args = []string{
		"-T", "-e", "none", "-o", "BatchMode=yes", "-o", fmt.Sprintf("ConnectTimeout=%.0f", reachPatience.Seconds()),
		"-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
	}
	if a.Port != "" {
		args = append(args, "-p", a.Port)
	}
	if a.user != "" {
		args = append(args, "-l", a.user)
	}
	if a.keyFile != "" {
		args = append(args, "-i", a.keyFile)
	}
	if a.noVerify {
		args = append(args, "-o", "StrictHostKeyChecking=no")
	}
	return program, append(args, "--", a.Host, "sh -c "+quote(a.script()))
}

// script is a command for the other host's shell. It is one line, so that any login
// shell passes it on unchanged. virt-ssh-helper takes no socket, because it finds the
// daemon without one.
func (a Address) script() string {
	netcat := "nc"
	if a.netcat != "" {
		netcat = a.netcat
	}
	find := "s=" + quote(a.Socket) + "; "
	if a.Socket == "" {
		find = "for s in " + strings.Join(wellKnown, " ") + "; do if [ -S $s ]; then break; fi; done; "
	}
	if a.Socket == "" && a.netcat == "" {
		find += "if command -v virt-ssh-helper >/dev/null 2>&1; then exec virt-ssh-helper " + System + "; fi; "
	}
	return find + "n=" + quote(netcat) + "; " +
		`if "$n" -h 2>&1 | grep -q -e "-q"; then exec "$n" -q 0 -U "$s"; fi; ` +
		`if command -v "$n" >/dev/null 2>&1; then exec "$n" -U "$s"; fi; ` +
		`if command -v socat >/dev/null 2>&1; then exec socat - "UNIX-CONNECT:$s"; fi; ` +
		`echo "there is neither virt-ssh-helper nor $n nor socat" >&2; exit 127`
}

// quote makes a word of a shell's.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func (t *tunnel) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	return n, t.why(err)
}

func (t *tunnel) Write(p []byte) (int, error) {
	n, err := t.Conn.Write(p)
	return n, t.why(err)
}

// why says of a connection that has ended what the program says.
func (t *tunnel) why(err error) error {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		return err
	}
	late := time.NewTimer(leaving)
	defer late.Stop()
	select {
	case <-t.ended:
	case <-late.C:
	}
	return fmt.Errorf("%w%s", err, t.said())
}

// The states that ssh ends with: its own failure, and a shell that does not find a
// program.
const (
	sshFailed = 255
	notFound  = 127
)

// said is what the program told, with what to do about it.
func (t *tunnel) said() string {
	text := ""
	select {
	case <-t.ended:
		text = fmt.Sprintf("; %s ended (%s)", t.command.Args[0], t.command.ProcessState)
		switch t.command.ProcessState.ExitCode() {
		case sshFailed:
			text += fmt.Sprintf(", see that it logs in to %s without asking anything: by a key or an agent, the host being known", t.host)
		case notFound:
			text += fmt.Sprintf(", install libvirt's client, nc or socat on %s", t.host)
		}
	default:
	}
	if words := t.words.String(); words != "" {
		text += "; it says: " + words
	}
	return text
}

// Close ends the connection, and the program with it.
func (t *tunnel) Close() error {
	var err error
	t.closing.Do(func() {
		err = t.Conn.Close() // the program sees the end of its input
		late := time.NewTimer(leaving)
		defer late.Stop()
		select {
		case <-t.ended:
		case <-late.C:
			_ = t.command.Process.Kill() // unless it has ended now
			<-t.ended
		}
	})
	return err
}

// words keeps the last of what a program writes, which is another host's, too.
type words struct {
	mu   sync.Mutex
	last []byte
}

const maxWords = 2000 // bytes

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = append(w.last, p[max(0, len(p)-maxWords):]...)
	w.last = w.last[max(0, len(w.last)-maxWords):]
	return len(p), nil
}

// String has no mark that would steer a terminal.
func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsPrint(r) && r != unicode.ReplacementChar:
			return r
		}
		return -1
	}, string(w.last)))
}
