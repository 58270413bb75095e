package kernel

import (
	"context"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// AllowThreads raises the limit of a running process if it may, and never lowers it. It returns the limit that the
// kernel then has.
func TestAllowThreads_OnlyRaises(t *testing.T) {
	child := exec.CommandContext(context.Background(), "cat")
	input, err := child.StdinPipe() // held open: it reads on
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		_ = child.Wait()
	})
	pid := child.Process.Pid
	if err := unix.Prlimit(pid, unix.RLIMIT_NPROC, &unix.Rlimit{Cur: 1000, Max: 1000}, nil); err != nil {
		t.Fatal(err)
	}
	for _, most := range []uint64{500, 2000} {
		allowed, err := Root{}.AllowThreads(pid, most)
		if err != nil {
			t.Fatal(err)
		}
		var now unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_NPROC, nil, &now); err != nil {
			t.Fatal(err)
		}
		if now.Cur != allowed || allowed < 1000 || most < 1000 && allowed != 1000 {
			t.Errorf("asked for %d it gives %d, and the kernel has %d", most, allowed, now.Cur)
		}
	}
	if _, err := (Root{}).AllowThreads(1<<22+1, 10); err == nil { // no process has that number
		t.Error("a process that is not there is allowed something")
	}
}
