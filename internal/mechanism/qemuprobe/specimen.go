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

// specimen is a QEMU that is run to be looked at. It has no guest of anybody's,
// hears one end of a socket pair, and is killed in the end.
type specimen struct {
	*qmp.Session
	process *qemuprocess.Process
	log     *os.File // what it printed
	release func()   // of its user; called when nothing of it is left
}

// subject is the QEMU that is looked at, and where it runs.
type subject struct {
	binary   string
	quarters *sandbox.Isolation
}

// place describes where a specimen runs; nil: where the daemon does. What it is
// handed it opens once more, as /proc/self/fd/N.
func (of subject) place() (c *sandbox.Spec, release func(), err error) {
	if of.quarters == nil {
		return nil, func() {}, nil
	}
	u, err := of.quarters.Users.Take("the probe of " + of.binary)
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
	return c, func() { _ = of.quarters.Users.Free(u) }, nil // what cannot be ended keeps its number
}

// startSpecimen runs a binary with its monitor on descriptor 3 and files from
// 4 on. It does not run a guest before it is told to.
func startSpecimen(ctx context.Context, of subject, args []string, files ...*os.File) (*specimen, error) {
	place, release, err := of.place()
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
		spec.Builder, spec.Sandbox = of.quarters.Builder, place
	}
	process, err := qemuprocess.Launch(ctx, spec)
	_ = theirs.Close()
	if err != nil {
		release()
		_ = conn.Close()
		_ = log.Close()
		return nil, err
	}
	s := &specimen{process: process, log: log, release: release}
	if s.Session, err = qmp.New(ctx, conn, slog.New(slog.DiscardHandler)); err != nil {
		return nil, s.died(err)
	}
	return s, nil
}

// died ends a specimen that would not talk, and says what became of it.
func (s *specimen) died(err error) error {
	// One that ended by itself may do so a moment after its monitor closed.
	select {
	case <-s.process.Exited():
	case <-time.After(time.Second):
	}
	said := s.end()
	if said == "" {
		said = "nothing"
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "QEMU %s and said: %s", s.process.Exit(), said)
}

// end kills the specimen, waits until it is gone, and gives the first lines
// that it printed and that are no warnings.
func (s *specimen) end() (said string) {
	if s.Session != nil {
		s.Close()
	}
	// Killing fails only for a process that has ended.
	_ = s.process.Kill()
	select {
	case <-s.process.Exited():
		s.release()
	case <-time.After(5 * time.Second): // stuck in the kernel, and so is its user
		s.process.Release()
	}
	defer func() { _ = s.log.Close() }()
	const enough = 16 << 10
	printed, err := io.ReadAll(io.NewSectionReader(s.log, 0, enough))
	if err != nil {
		return ""
	}
	return gist(string(printed))
}

// gist keeps what matters of QEMU's standard error.
func gist(printed string) string {
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

// socketPair gives two ends of a connection, ours and one to pass on.
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
