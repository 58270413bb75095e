// Package linktest runs the tests of packages that change the network in a
// network namespace of their own. So no test touches the host's links, firewall or
// addresses, and leftovers end with the process.
//
// The package offers means to run in such a namespace, and to act as a guest at the
// other end of a link. The daemon uses nothing of it.
package linktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inside marks the test binary that runs in its own namespace: new before that
// is prepared, ready afterwards.
const inside = "LODGE_LINKTEST_NAMESPACE"

// Main runs the tests of a package: as root in a new network and mount
// namespace by running the test binary again, otherwise where it is, and then
// Need skips. Call it from TestMain: os.Exit(linktest.Main(m)).
func Main(m *testing.M) int {
	switch {
	case os.Getenv(inside) == "new":
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "linktest:", err)
			return 1
		}
		fallthrough
	case os.Getenv(inside) != "" || os.Getuid() != 0: // also a fuzzing worker
		return m.Run()
	}
	err := again(context.Background(), os.Args[1:], os.Stdout, os.Stderr)
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(ended.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "linktest: no private network namespace, tests that need one are skipped:", err)
		return m.Run()
	}
	return 0
}

// again runs the test binary once more, in namespaces of its own.
func again(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	runtime.LockOSThread() // the parent death signal follows the thread that forked
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), inside+"=new")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

// Alone is for a package that runs its other tests on the host. It runs the
// calling test once more in namespaces of its own. It returns true in that second
// run; on false the test has nothing left to do.
func Alone(t *testing.T) bool {
	t.Helper()
	switch {
	case os.Getenv(inside) == "new":
		if err := prepare(); err != nil {
			t.Fatal(err)
		}
		return true
	case os.Getenv(inside) != "":
		return true
	case os.Getuid() != 0:
		t.Skip("needs a private network namespace, which needs root")
	}
	var out bytes.Buffer
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v=true"}
	if deadline, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(deadline).String())
	}
	if err := again(t.Context(), args, &out, &out); err != nil {
		t.Errorf("in a namespace of its own: %v\n%s", err, out.Bytes())
	} else if bytes.Contains(out.Bytes(), []byte("--- SKIP")) {
		t.Skipf("%s", out.Bytes())
	}
	return false
}

// prepare makes /sys show the new namespace and brings up its loopback.
func prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	if err := remountSys(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	return os.Setenv(inside, "ready")
}

// remountSys mounts /sys again for the new namespace, and keeps the control groups
// that are mounted below it.
func remountSys() error {
	const groups = "/sys/fs/cgroup"
	kept, err := unix.Open(groups, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", groups, err)
	}
	defer func() { _ = unix.Close(kept) }()
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("cannot mount /sys: %w", err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", kept), groups, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot mount %s again: %w", groups, err)
	}
	return nil
}

// Need skips a test outside a private network namespace, or one that needs
// programs that are not installed.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	if os.Getenv(inside) == "" {
		t.Skip("needs a private network namespace, which needs root")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs the program %s: %v", p, err)
		}
	}
}
