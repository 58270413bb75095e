package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest/line"
)

// program is one that runs for the host. Its fields may be read once done is
// closed.
type program struct {
	pid            int
	stdout, stderr capture
	status         unix.WaitStatus
	timedOut       bool
	done           chan struct{}
}

// run starts a program in a session of its own. After limit it is killed with all
// its children.
func (f *family) run(argv []string, stdin []byte, limit time.Duration) (*program, error) {
	if len(argv) == 0 {
		return nil, errors.New("no program named")
	}
	path, err := find(argv[0])
	if err != nil {
		return nil, err
	}
	pipes, err := openPipes()
	if err != nil {
		return nil, err
	}
	argv = append([]string{path}, argv[1:]...)
	pid, ended, err := f.start(argv, pipes.theirs[:], &syscall.SysProcAttr{Setsid: true})
	pipes.closeTheirs()
	if err != nil {
		pipes.closeOurs()
		return nil, err
	}
	p := &program{pid: pid, done: make(chan struct{})}
	go p.attend(pipes.ours, stdin, ended, limit)
	return p, nil
}

// attend feeds and reads the program and waits for its end.
func (p *program) attend(ours [3]*os.File, stdin []byte, ended <-chan unix.WaitStatus, limit time.Duration) {
	defer close(p.done)
	var copies sync.WaitGroup
	copies.Go(func() {
		_, _ = ours[0].Write(stdin)
		_ = ours[0].Close()
	})
	copies.Go(func() { p.stdout.drain(ours[1]) })
	copies.Go(func() { p.stderr.drain(ours[2]) })
	select {
	case p.status = <-ended:
	case <-time.After(limit):
		p.timedOut = true
		_ = unix.Kill(-p.pid, unix.SIGKILL)
		p.status = <-ended
	}
	// A daemon that the program left behind may hold the pipes open forever.
	for _, file := range ours[1:] {
		_ = file.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	}
	_ = ours[0].SetWriteDeadline(time.Now())
	copies.Wait()
}

// code is the exit status as a shell would give it.
func (p *program) code() int {
	if p.status.Signaled() {
		return 128 + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

// capture keeps the first line.MaxOutput bytes of a stream.
type capture struct {
	kept    []byte
	dropped bool
}

func (c *capture) bytes() []byte { return c.kept }

func (c *capture) drain(from *os.File) {
	defer from.Close()
	c.kept, _ = io.ReadAll(io.LimitReader(from, line.MaxOutput))
	n, _ := io.Copy(io.Discard, from)
	c.dropped = n > 0
}

// pipes are three pipes. The program gets the far ends.
type pipes struct{ ours, theirs [3]*os.File }

func openPipes() (*pipes, error) {
	p := &pipes{}
	for i := range p.ours {
		r, w, err := os.Pipe()
		if err != nil {
			p.closeOurs()
			p.closeTheirs()
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

func (p *pipes) closeOurs()   { closeAll(p.ours) }
func (p *pipes) closeTheirs() { closeAll(p.theirs) }

func closeAll(files [3]*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// find gives the path of a program.
func find(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range []string{"/bin", "/sbin", "/usr/bin", "/usr/sbin"} {
		if info, err := os.Stat(dir + "/" + name); err == nil && info.Mode()&0o111 != 0 {
			return dir + "/" + name, nil
		}
	}
	return "", errors.New("no program named " + name)
}
