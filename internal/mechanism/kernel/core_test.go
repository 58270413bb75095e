package kernel_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// TestForbidCore_DaemonAndChildren: after ForbidCore a process, and the processes
// that it starts, have the limit that makes the kernel neither write a core nor hand one
// to a program. It runs in a process of its own, because the limit cannot be raised again.
// Promise: K7
func TestForbidCore_DaemonAndChildren(t *testing.T) {
	const variable = "LODGE_TEST_FORBID_CORE"
	if os.Getenv(variable) != "" {
		if err := kernel.ForbidCore(); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "cat", "/proc/self/limits").Output()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s", out)
		return
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestForbidCore_DaemonAndChildren$", "-test.v")
	again.Env = append(os.Environ(), variable+"=1")
	out, err := again.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) > 5 && strings.Contains(line, "Max core file size") {
			if fields[4] != "1" || fields[5] != "1" {
				t.Errorf("a program that is started has the limit %q", line)
			}
			return
		}
	}
	t.Errorf("no limit is told:\n%s", out)
}
