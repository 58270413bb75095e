package qemuprobe

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

// probedQEMU is a QEMU that runs for a probe. It has no user's guest, listens on a socket pair, and is
// killed at the end.
type probedQEMU struct {
	*qmp.Session
	process *qemuprocess.Process
	log     *os.File // its output
	release func()   // of its user; called when nothing of it is left
}

// target is the binary to probe, and where it runs.
type target struct {
	binary    string
	isolation *sandbox.Isolation
}

// sandbox describes the sandbox of a probe; nil: it runs as the daemon does. It mounts /proc because QEMU
// opens its descriptors again as /proc/self/fd/N.
func (of target) sandbox() (c *sandbox.Spec, release func(), err error) {
	if of.isolation == nil {
		return nil, func() {}, nil
	}
	u, err := of.isolation.Users.Take("the probe of " + of.binary)
	if err != nil {
		return nil, nil, err
	}
	const threads, file = 256, 64 << 20
	c = &sandbox.Spec{User: u, MountProc: true, Limits: sandbox.Limits{Threads: threads, Locked: file, File: file}}
	const kvm = "/dev/kvm"
	var st unix.Stat_t
	if unix.Stat(kvm, &st) == nil {
		c.Devices = []sandbox.Device{{Path: kvm, Mode: unix.S_IFCHR, Dev: st.Rdev}}
	}
	return c, func() { _ = of.isolation.Users.Free(u) }, nil // if a process cannot be killed, its user stays taken
}

// startQEMU runs a binary with its monitor on descriptor 3 and files from
// 4 on. It does not run a guest before it is told to.
func startQEMU(ctx context.Context, of target, args []string, files ...*os.File) (*probedQEMU, error) {
	place, release, err := of.sandbox()
	if err != nil {
		return nil, err
	}
	log, err := memoryFile("qemu-log", nil)
	if err != nil {
		release()
		return nil, err
	}
	conn, theirs, err := socketPair()
	if err != nil {
		release()
		_ = log.Close()
		return nil, err
	}
	spec := qemuprocess.Spec{
		Binary: of.binary,
		Args: append([]string{
			"-S", "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
			"-chardev", "socket,id=monitor,fd=3", "-mon", "chardev=monitor,mode=control",
		}, args...),
		Env:            []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Dir:            "/",
		Files:          append([]*os.File{theirs}, files...),
		Log:            log,
		KillWithDaemon: true,
	}
	if place != nil {
		spec.Builder, spec.Sandbox = of.isolation.Builder, place
	}
	process, err := qemuprocess.Launch(ctx, spec)
	_ = theirs.Close()
	if err != nil {
		release()
		_ = conn.Close()
		_ = log.Close()
		return nil, err
	}
	s := &probedQEMU{process: process, log: log, release: release}
	if s.Session, err = qmp.New(ctx, conn, slog.New(slog.DiscardHandler)); err != nil {
		return nil, s.failed(err)
	}
	return s, nil
}

// failed ends a QEMU that does not answer, and adds its exit status and output to the error.
func (s *probedQEMU) failed(err error) error {
	// A QEMU that exits may do so a moment after its monitor closed.
	select {
	case <-s.process.Exited():
	case <-time.After(time.Second):
	}
	said := s.kill()
	if said == "" {
		said = "nothing"
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "QEMU %s and said: %s", s.process.Exit(), said)
}

// kill kills QEMU, waits until it has ended, and returns its first lines of output that are not warnings.
func (s *probedQEMU) kill() (said string) {
	if s.Session != nil {
		s.Close()
	}
	// Killing fails only for a process that has ended.
	_ = s.process.Kill()
	select {
	case <-s.process.Exited():
		s.release()
	case <-time.After(5 * time.Second): // stuck in the kernel; its user stays taken
		s.process.Release()
	}
	defer func() { _ = s.log.Close() }()
	const enough = 16 << 10
	printed, err := io.ReadAll(io.NewSectionReader(s.log, 0, enough))
	if err != nil {
		return ""
	}
	return firstLines(string(printed))
}

// firstLines returns the relevant lines of QEMU's standard error.
func firstLines(printed string) string {
	const most, longest = 2, 200
	var lines []string
	for line := range strings.Lines(printed) {
		if name, rest, found := strings.Cut(line, ": "); found && strings.HasPrefix(name, "qemu-") {
			line = rest
		}
		line = strings.ToValidUTF8(strings.TrimSpace(line), "?")
		if line == "" || strings.HasPrefix(line, "warning:") || strings.HasPrefix(line, "extra data[") {
			continue
		}
		if lines = append(lines, line[:min(len(line), longest)]); len(lines) == most {
			break
		}
	}
	return strings.Join(lines, "; ")
}

// socketPair returns the two ends of a connection: ours and one to pass on.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "monitor"), os.NewFile(uintptr(fds[1]), "monitor")
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// memoryFile makes a file that is in no directory.
func memoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(content); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
