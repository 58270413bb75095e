package kernel_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// Threads can be bound on hosts with more than a thousand processors, too. The kernel ignores processors
// that this host does not have.
func TestSetAffinity_HighNumbers(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	before, err := kernel.Affinity(unix.Gettid())
	if err != nil || before.IsEmpty() {
		t.Fatalf("%v, %v", before, err)
	}
	to := topology.CPUs(before.Min(), 5000)
	if err := kernel.SetAffinity(unix.Gettid(), to); err != nil {
		t.Fatal(err)
	}
	if after, err := kernel.Affinity(unix.Gettid()); err != nil || !after.Contains(before.Min()) || after.Len() > 2 {
		t.Errorf("bound to %s it may run on %s (%v)", to, after, err)
	}
	if err := kernel.SetAffinity(unix.Gettid(), topology.CPUs(10000)); err == nil {
		t.Error("a thread is bound to a processor that no kernel has")
	}
}
