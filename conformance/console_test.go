package conformance

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a program that runs on a pseudo-terminal, as if a person used it.
type terminal struct {
	master  *os.File
	command *exec.Cmd
	seen    bytes.Buffer
}

// onTerminal starts a program on a pseudo-terminal of its own.
func onTerminal(t *testing.T, command *exec.Cmd) *terminal {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	master := os.NewFile(uintptr(fd), "terminal")
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	command.Stdin, command.Stdout, command.Stderr = slave, slave, slave
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	return &terminal{master: master, command: command}
}

// expect reads until the output since the last match contains text.
func (c *terminal) expect(t *testing.T, text string) {
	t.Helper()
	_ = c.master.SetReadDeadline(time.Now().Add(patience))
	buffer := make([]byte, 4096)
	for {
		if i := strings.Index(c.seen.String(), text); i >= 0 {
			c.seen.Next(i + len(text))
			return
		}
		n, err := c.master.Read(buffer)
		c.seen.Write(buffer[:n])
		if err != nil {
			t.Fatalf("waiting for %q: %v; the terminal shows %q", text, err, c.seen.String())
		}
	}
}

// raw waits until the program has put the terminal into raw mode. Input that is typed earlier is lost.
func (c *terminal) raw(t *testing.T) {
	t.Helper()
	eventually(t, "the program reading keys", func() bool {
		mode, err := unix.IoctlGetTermios(int(c.master.Fd()), unix.TCGETS)
		return err == nil && mode.Lflag&unix.ICANON == 0
	})
}

func (c *terminal) enter(t *testing.T, text string) {
	t.Helper()
	if _, err := c.master.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func liveConsole(t *testing.T, g *guest) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	virsh := func(more ...string) *terminal {
		return onTerminal(t, g.d.command(ctx, "virsh", append([]string{"-c", g.d.uri(), "console", g.name}, more...)...))
	}
	first := virsh()
	first.expect(t, "Escape character is ^]")
	first.raw(t)
	first.enter(t, "\r")
	first.expect(t, "# ")
	first.enter(t, "echo $((6*7)) is the answer\r")
	first.expect(t, "42 is the answer")

	// A second client is refused, and takes the console over with --force.
	contains(t, "a second console", g.d.mustFail(t, "console", g.name), "console")
	second := virsh("--force")
	second.expect(t, "Escape character is ^]")
	second.raw(t)
	second.enter(t, "\recho $((7*7)) is another\r")
	second.expect(t, "49 is another")
	_ = first.command.Wait()
	second.enter(t, "\x1d") // the escape character
	if err := second.command.Wait(); err != nil {
		t.Errorf("leaving the console: %v", err)
	}
}
