package conformance

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// keeperVariable tells a copy of the test program to be the first process of a world instead of running tests.
const keeperVariable = "LODGE_CONFORMANCE_KEEPER"

// patience limits every wait for something that takes seconds on an idle machine. Guests are emulated, and
// machines are busy.
const patience = 2 * time.Minute

// world is a set of name spaces with one resident process. When that process ends, the kernel kills every process
// in the world.
type world struct {
	keeper *exec.Cmd
	stdin  io.Closer // the keeper leaves when it is closed
	dir    string    // on the host's file system, seen from inside as well
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "lodge-") //nolint:usetesting // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	w := &world{dir: dir}
	w.keeper = exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe")
	w.keeper.Env = append(os.Environ(), keeperVariable+"=1")
	w.keeper.Stderr = os.Stderr
	w.keeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS}
	stdin, err := w.keeper.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.stdin = stdin
	stdout, err := w.keeper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.keeper.Start(); err != nil {
		t.Skipf("cannot make name spaces here: %v", err)
	}
	t.Cleanup(func() { w.end(t) })
	if text, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("the world's first process says %q: %v", text, err)
	}
	return w
}

// end ends the world with everything in it.
func (w *world) end(t *testing.T) {
	_ = w.stdin.Close()
	_ = w.keeper.Wait()
	if t.Failed() {
		t.Logf("left for you to look at: %s", w.dir)
		return
	}
	if err := os.RemoveAll(w.dir); err != nil {
		t.Errorf("cannot clean up: %v", err)
	}
}

// command prepares a program that runs inside.
func (w *world) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	inside := []string{"-t", strconv.Itoa(w.keeper.Process.Pid), "-p", "-n", "-m", "-u", "-r", "--", name}
	c := exec.CommandContext(ctx, "nsenter", append(inside, args...)...)
	c.WaitDelay = 5 * time.Second // a grandchild may hold the pipes
	return c
}

// output runs a program inside to its end and returns its output.
func (w *world) output(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := w.command(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// processes returns the command lines of the processes inside, by their number on the host. It leaves out the
// keeper and processes that are just entering.
func (w *world) processes() map[int]string {
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", w.keeper.Process.Pid))
	if err != nil {
		return nil
	}
	found := map[int]string{}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if here, err := os.Readlink(dir + "/ns/pid"); err != nil || here != space || pid == w.keeper.Process.Pid {
			continue
		}
		words, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(words) == 0 {
			continue // ended, or a zombie that the keeper will reap
		}
		found[pid] = strings.TrimSpace(string(bytes.ReplaceAll(words, []byte{0}, []byte{' '})))
	}
	return found
}

// keep is the main function of a world's first process. It makes the mounts for the new name spaces, reaps
// orphans, and ends when its standard input does.
func keep() {
	if err := mountWorld(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot mount the world:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, "ready")
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, unix.SIGCHLD)
	go func() {
		for range orphans {
			for pid := 1; pid > 0; {
				pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// mountWorld mounts the world's own view of processes and links. It keeps the host's control groups, and mounts empty
// folders where stock clients look for daemons.
func mountWorld() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	groups, err := os.MkdirTemp("", "lodge-cgroup-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(groups) }()
	for _, step := range []func() error{
		func() error { return unix.Mount("proc", "/proc", "proc", 0, "") },
		func() error { return unix.Mount("/sys/fs/cgroup", groups, "", unix.MS_BIND|unix.MS_REC, "") },
		func() error { return unix.Mount("sysfs", "/sys", "sysfs", 0, "") },
		func() error { return unix.Mount(groups, "/sys/fs/cgroup", "", unix.MS_MOVE, "") },
		func() error { return os.MkdirAll("/run/libvirt", 0o755) },
		func() error { return unix.Mount("tmpfs", "/run/libvirt", "tmpfs", 0, "mode=0755") },
		func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() }, //nolint:noctx // ends with the world
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
