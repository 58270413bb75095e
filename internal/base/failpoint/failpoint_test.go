package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/failpoint/failpointtest"
)

// mortalVariable names the control directory for the second run of the test program, which
// a fail point ends.
const mortalVariable = "FAILPOINT_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(mortalVariable); dir != "" {
		c := &control{dir: dir}
		for range 5 {
			_ = c.reach("there.step")
			_ = c.reach("elsewhere.step")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestReach_KillsAtTheNthTime(t *testing.T) {
	dir := t.TempDir()
	if err := Arm(dir, Armed{Point: "there.step", Action: Kill, Nth: 3}); err != nil {
		t.Fatal(err)
	}
	mortal := exec.CommandContext(t.Context(), "/proc/self/exe")
	mortal.Env = append(os.Environ(), mortalVariable+"="+dir)
	err := mortal.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("it ends with %v and not by SIGKILL", err)
	}
	want := []string{"there.step", "elsewhere.step", "there.step", "elsewhere.step", "there.step"}
	if got, err := Reached(dir); err != nil || !slices.Equal(got, want) {
		t.Errorf("reached %v, want %v (%v)", got, want, err)
	}
	if got, err := Reached(dir); err != nil || got != nil {
		t.Errorf("reached %v since (%v)", got, err)
	}
}

func TestErr_FailsUntilDisarmed(t *testing.T) {
	c := &control{dir: t.TempDir()}
	arm := func(a Armed) {
		t.Helper()
		if err := Arm(c.dir, a); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // each request starts the count again, also an equal one
		arm(Armed{Point: "there.step", Action: Fail, Nth: 2})
		for i, fails := range []bool{false, true, true} {
			if err := c.reach("there.step"); (err != nil) != fails {
				t.Errorf("time %d: %v", i+1, err)
			}
		}
	}
	if err := c.reach("elsewhere.step"); err != nil {
		t.Error(err)
	}
	arm(Armed{})
	if err := c.reach("there.step"); err != nil {
		t.Errorf("disarmed: %v", err)
	}
}

func TestReach_WaitsUntilDisarmed(t *testing.T) {
	c := &control{dir: t.TempDir()}
	if err := Arm(c.dir, Armed{Point: "there.step", Action: Wait}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- c.reach("there.step") }()
	for {
		if got, _ := Reached(c.dir); got != nil {
			break
		}
	}
	select {
	case err := <-done:
		t.Fatalf("it does not wait (%v)", err)
	default:
	}
	if err := Arm(c.dir, Armed{}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A shipped daemon's points are empty, whatever its environment says.
// Promise: F2
func TestReach_NotBuiltIn(t *testing.T) {
	if Built {
		t.Skip("built with the tag failpoints")
	}
	t.Setenv(Variable, t.TempDir())
	if err := Arm(os.Getenv(Variable), Armed{Point: "there.step", Action: Kill}); err != nil {
		t.Fatal(err)
	}
	if got := testing.AllocsPerRun(100, func() { Reach("there.step") }); got != 0 {
		t.Errorf("a point allocates %v times", got)
	}
	if got, err := Reached(os.Getenv(Variable)); got != nil || err != nil {
		t.Errorf("a point of a shipped daemon was reached: %v (%v)", got, err)
	}
}

func TestNames_LiteralAndUnique(t *testing.T) {
	if _, err := failpointtest.Names(".."); err != nil {
		t.Error(err)
	}
	for text, wrong := range map[string]string{
		`failpoint.Reach("a.b")`:                           "",
		`failpoint.Reach("a.b"); failpoint.Reach("a.c")`:   "",
		`failpoint.Reach("a.b"); _ = failpoint.Err("a.b")`: "already",
		`failpoint.Reach("A b")`:                           "area.step",
		`failpoint.Reach(name)`:                            "literal",
	} {
		dir := t.TempDir()
		source := "package p\nfunc f(name string) { " + text + " }\n"
		if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := failpointtest.Names(dir)
		if wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
