package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// bin holds the daemon under test, built once.
var bin string

// binVariable names a directory with programs to test. Without it the tests build them from this checkout.
const binVariable = "LODGE_BIN"

func TestMain(m *testing.M) {
	if os.Getenv(keeperVariable) != "" {
		keep()
	}
	if dir := os.Getenv(deadVariable); dir != "" {
		runDeadFileSystem(dir)
	}
	// Otherwise it would depend on the machine whether its own polkit is asked.
	if err := os.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent"); err != nil {
		panic(err)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if bin = os.Getenv(binVariable); bin != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "lodge-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin = dir
	return m.Run()
}

// program builds one of Lodge's commands, once, and gives its path. lodge has lodged beside
// it, which it runs for some commands.
func program(t *testing.T, name string) string {
	t.Helper()
	if name == "lodge" {
		built(t, "lodged", "../cmd/lodged", buildFlags...)
	}
	return built(t, name, "../cmd/"+name, buildFlags...)
}

// lodgeWithLab gives lodge with the lab's plug-in beside it.
func lodgeWithLab(t *testing.T) string {
	t.Helper()
	built(t, "lodge-lab", "../lab/cmd/lodge-lab", buildFlags...)
	return program(t, "lodge")
}

// failpointDaemon builds a lodged with fail points. It does not detect data races unless racing is set, so that it
// starts and dies fast.
func failpointDaemon(t *testing.T, racing bool) string {
	t.Helper()
	if racing {
		return built(t, "lodged-racing", "../cmd/lodged", append([]string{"-tags", "failpoints"}, buildFlags...)...)
	}
	return built(t, "lodged-failpoints", "../cmd/lodged", "-tags", "failpoints")
}

// built builds a command from its folder under a name of its own, once, and gives its path.
func built(t *testing.T, as, from string, flags ...string) string {
	t.Helper()
	path := filepath.Join(bin, as)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	args := append([]string{"build", "-o", path}, flags...)
	build := exec.CommandContext(context.WithoutCancel(t.Context()), "go", append(args, from)...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build %s: %v\n%s", from, err, out)
	}
	return path
}

// clientsVariable is set by `make clients`, which runs every test here. `make test` runs one test of each area, to
// fit the time of CI.
const clientsVariable = "LODGE_CLIENTS"

// onlyInClients skips the test outside of `make clients`.
func onlyInClients(t *testing.T) {
	t.Helper()
	if os.Getenv(clientsVariable) == "" {
		t.Skip("`make clients` runs it")
	}
}

// needs skips the test without root, or if the host lacks one of the programs.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("drives real guests: not among the short tests")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes name spaces, links and guests")
	}
	for _, p := range append(programs, "qemu-system-x86_64", "virsh", "nsenter") {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s, which is not installed here", p)
		}
	}
}
