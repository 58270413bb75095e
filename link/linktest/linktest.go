// Package linktest runs the tests of rooms that change the network in a
// network namespace of their own, so that no test touches the host's links,
// firewall or addresses, and whatever one leaves ends with the process. What
// may enter are means to stand in such a namespace and on guests' side of a
// link; nothing in here is for the daemon.
package linktest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

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
	runtime.LockOSThread() // the parent death signal follows the thread that forked
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=new")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	err := cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return max(ended.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "linktest: no private network namespace, tests that need one are skipped:", err)
		return m.Run()
	}
	return 0
}

// prepare makes /sys show the new namespace and brings up its loopback.
func prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("cannot mount /sys: %w", err)
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

// Need skips a test that is not in a private network namespace, or whose
// programs are not installed.
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
