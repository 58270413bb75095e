// Command agent runs programs inside the nested host for the tests, and reports their exit. It answers requests of
// testguest/line on a virtio-serial port. Requests run independently: a slow one does not delay the others.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest/early"
	"github.com/lodge-kvm/lodge/internal/testguest/line"
)

func main() {
	port, err := findPort()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var turn sync.Mutex // held for a whole reply
	requests := bufio.NewScanner(port)
	requests.Buffer(nil, line.MaxLine)
	for requests.Scan() {
		var q line.Request
		if err := json.Unmarshal(requests.Bytes(), &q); err != nil {
			continue // the end of a request that its host gave up on
		}
		go func() {
			text, err := json.Marshal(answer(q))
			if err != nil {
				return
			}
			turn.Lock()
			defer turn.Unlock()
			_, _ = port.Write(append(text, '\n'))
		}()
	}
	fmt.Fprintln(os.Stderr, "the port has ended:", requests.Err())
	os.Exit(1) // systemd starts it again
}

// findPort waits for the port, because this program starts before the kernel has found it.
func findPort() (*early.Port, error) {
	deadline := time.After(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		devices, _ := os.ReadDir("/sys/class/virtio-ports")
		for _, d := range devices {
			if early.PortName(d.Name()) != line.Port {
				continue
			}
			if port, err := early.OpenPort(d.Name()); err == nil || !errors.Is(err, os.ErrNotExist) {
				return port, err
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			return nil, errors.New("there is no port " + line.Port)
		}
	}
}

func answer(q line.Request) line.Reply {
	r := line.Reply{ID: q.ID}
	switch {
	case q.Do == line.Ping:
		host, _ := os.Hostname()
		r.Facts = &line.Facts{Hostname: host}
	case q.Do == line.Exec && len(q.Argv) > 0:
		r.Exit = run(q)
	default:
		r.Error = "this agent only runs programs"
	}
	return r
}

// run runs a program to its end. At the deadline it kills the program and every process that is still in its
// process group.
func run(q line.Request) *line.Exit {
	limit := line.MaxTimeout
	if asked := time.Duration(q.TimeoutMS) * time.Millisecond; asked > 0 {
		limit = min(asked, limit)
	}
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	command := exec.CommandContext(ctx, q.Argv[0], q.Argv[1:]...)
	command.Stdin = bytes.NewReader(q.Stdin)
	var stdout, stderr bounded
	command.Stdout, command.Stderr = &stdout, &stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.Cancel = func() error { return unix.Kill(-command.Process.Pid, unix.SIGKILL) }
	command.WaitDelay = 200 * time.Millisecond // processes that it left running may hold the pipes open
	err := command.Run()
	exit := &line.Exit{
		Code: 127, Stdout: stdout.kept, Stderr: stderr.kept,
		Dropped: stdout.dropped || stderr.dropped, TimedOut: ctx.Err() != nil,
	}
	switch state := command.ProcessState; {
	case state == nil:
		exit.Stderr = append(exit.Stderr, err.Error()...)
	case state.ExitCode() < 0:
		if status, is := state.Sys().(syscall.WaitStatus); is {
			exit.Code = 128 + int(status.Signal())
		}
	default:
		exit.Code = state.ExitCode()
	}
	return exit
}

// bounded keeps the first line.MaxOutput bytes.
type bounded struct {
	kept    []byte
	dropped bool
}

func (b *bounded) Write(p []byte) (int, error) {
	fits := min(len(p), line.MaxOutput-len(b.kept))
	b.dropped = b.dropped || fits < len(p)
	b.kept = append(b.kept, p[:fits]...)
	return len(p), nil
}
