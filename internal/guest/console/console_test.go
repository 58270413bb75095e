package console

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// Each session takes memory for as long as its client stays, so a console has a limit of sessions.
func TestConsole_SessionsBounded(t *testing.T) {
	var all machine.Consoles
	back := func(ctx context.Context, _ *device.Char) (io.ReadWriteCloser, error) {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = theirs.Close() })
		return ours, ctx.Err()
	}
	open := func(o machine.ConsoleOptions) (io.Closer, error) {
		return all.Open(t.Context(), &device.Char{}, o, back)
	}
	for range machine.MaxSessions {
		s, err := open(machine.ConsoleOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
	}
	if _, err := open(machine.ConsoleOptions{}); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("one more: %v", err)
	}
	s, err := open(machine.ConsoleOptions{Force: true})
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
}

// A client leaves a console of a guest that reads no input. The client must not be held up, also if other clients
// keep the console open.
// Promise: A15
func TestConsole_CloseDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, guests := net.Pipe() // no guest reads it
		defer guests.Close()
		var all machine.Consoles
		open := func() io.ReadWriteCloser {
			s, err := all.Open(t.Context(), &device.Char{}, machine.ConsoleOptions{}, func(context.Context, *device.Char) (io.ReadWriteCloser, error) { return ours, nil })
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		stays := open()
		left := make(chan error, 2)
		for n := range cap(left) {
			leaves := open()
			go func() {
				_, err := leaves.Write([]byte("much"))
				left <- err
			}()
			synctest.Wait()
			_ = leaves.Close()
			synctest.Wait()
			if len(left) == n {
				t.Fatal("it is held")
			}
		}
		told := make([]byte, 4)
		go func() { _, _ = stays.Write([]byte("more")) }()
		for _, want := range []string{"much", "more"} {
			if _, err := io.ReadFull(guests, told); err != nil || string(told) != want {
				t.Errorf("the guest takes %q, %v; want %q", told, err, want)
			}
		}
		_ = stays.Close()
	})
}

// A root guest's terminal lies in a user's folder. The user puts a symbolic link there, and the daemon, as root,
// must not open another terminal by it.
func TestOpenTerminal_Link(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make a link of another's")
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer terminal.Close()
	number, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "tty")
	if err := os.Symlink(fmt.Sprintf("/dev/pts/%d", number), link); err != nil {
		t.Fatal(err)
	}
	open := func() error {
		c, err := openBackend(t.Context(), (&machine.Instance{}), &device.Char{Backend: device.Backend{Type: "dev", Path: link}})
		if err == nil {
			err = c.Close()
		}
		return err
	}
	if err := open(); err != nil {
		t.Errorf("by a link of root's: %v", err)
	}
	if err := os.Lchown(link, 4242, 4242); err != nil {
		t.Fatal(err)
	}
	if err := open(); !fault.Is(err, fault.Denied) {
		t.Errorf("by a link of a user's: %v", err)
	}
}

// Screenshots that no client reads are memory of the host, so they are limited.
func TestScreenshots_UnreadBounded(t *testing.T) {
	var p machine.OpenScreenshots
	if !reserveBytes(&p, 2*maxPicture) {
		t.Error("one alone is not taken")
	}
	if reserveBytes(&p, 1) {
		t.Error("a second connection is accepted beside it")
	}
	releaseBytes(&p, 2*maxPicture)
	for range 2 {
		if !reserveBytes(&p, maxPicture/2) {
			t.Error("what there is room for is not taken")
		}
	}
	if reserveBytes(&p, 1) {
		t.Error("more is taken than there is room for")
	}
}
