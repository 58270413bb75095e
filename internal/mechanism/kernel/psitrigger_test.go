package kernel_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

var someMemory = kernel.PressureTrigger{File: kernel.HostMemoryPressure, Stall: 150 * time.Millisecond, Window: 2 * time.Second}

func TestWatchPressure_WordsForTheKernel(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	full := someMemory
	full.Full = true
	w, err := kernel.At(dir).WatchPressure(full)
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := strings.Cut(content(t, dir, kernel.HostMemoryPressure), "\x00"); got != "full 150000 2000000" {
		t.Errorf("the kernel is told %q", got)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestWatchPressure_Refused(t *testing.T) {
	if _, err := kernel.At(t.TempDir()).WatchPressure(someMemory); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "psi=1") {
		t.Errorf("a kernel without pressure: %v", err)
	}
	for _, wrong := range []kernel.PressureTrigger{
		{File: kernel.HostMemoryPressure, Window: time.Second},
		{File: kernel.HostMemoryPressure, Stall: 2 * time.Second, Window: time.Second},
		{File: kernel.HostMemoryPressure, Stall: time.Second, Window: 11 * time.Second},
	} {
		if _, err := (kernel.Root{}).WatchPressure(wrong); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	// Every host takes this one, or says that it needs a privilege.
	short := kernel.PressureTrigger{File: kernel.HostMemoryPressure, Stall: 100 * time.Millisecond, Window: 700 * time.Millisecond}
	w, err := (kernel.Root{}).WatchPressure(short)
	if err == nil {
		err = w.Close()
	}
	if err != nil && !fault.Is(err, fault.Unsupported) {
		t.Errorf("without privilege: %v", err)
	}
}

// watchLive sets a trigger on this host.
func watchLive(t *testing.T, trigger kernel.PressureTrigger) *kernel.PressureWatch {
	t.Helper()
	w, err := (kernel.Root{}).WatchPressure(trigger)
	if fault.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// A wait ends with its context and leaves neither a goroutine nor a descriptor. It does not spin meanwhile.
func TestPressureWatch_EndsWithItsContext(t *testing.T) {
	w := watchLive(t, kernel.PressureTrigger{File: kernel.HostMemoryPressure, Full: true, Stall: 10 * time.Second, Window: 10 * time.Second})
	reason := errors.New("enough")
	fds := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	goroutines, open, start := runtime.NumGoroutine(), fds(), processorTime(t)
	for range 20 {
		ctx, stop := context.WithCancelCause(t.Context())
		timer := time.AfterFunc(20*time.Millisecond, func() { stop(reason) })
		if err := w.Wait(ctx); !errors.Is(err, reason) {
			t.Fatalf("the wait ends with %v", err)
		}
		timer.Stop()
	}
	if spent := processorTime(t) - start; spent > 200*time.Millisecond {
		t.Errorf("waiting 400 ms took %v of processor time", spent)
	}
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, and %d before", runtime.NumGoroutine(), goroutines)
		}
	}
	if now := fds(); now > open {
		t.Errorf("%d descriptors, and %d before", now, open)
	}
	ended, stop := context.WithCancelCause(t.Context())
	stop(reason)
	if err := w.Wait(ended); !errors.Is(err, reason) {
		t.Errorf("a wait whose context had ended: %v", err)
	}
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// More threads than processors make pressure on these, which the kernel reports once a window.
func TestPressureWatch_ReportsPressure(t *testing.T) {
	if testing.Short() {
		t.Skip("it keeps every processor busy for seconds")
	}
	w := watchLive(t, kernel.PressureTrigger{File: "/proc/pressure/cpu", Stall: time.Millisecond, Window: 2 * time.Second})
	ctx, stop := context.WithTimeout(t.Context(), 60*time.Second)
	defer stop()
	var busy sync.WaitGroup
	spin, enough := context.WithCancelCause(ctx)
	for range 2 * runtime.NumCPU() {
		busy.Go(func() {
			runtime.LockOSThread()
			for spin.Err() == nil { // no more than this
			}
		})
	}
	previous := runtime.GOMAXPROCS(2*runtime.NumCPU() + 1)
	defer runtime.GOMAXPROCS(previous)
	defer busy.Wait()
	defer enough(nil)
	began := time.Now()
	for range 3 {
		if err := w.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("three reports within %v: the kernel gives one a window", took)
	}
}

// The watched group is removed.
func TestPressureWatch_GroupGone(t *testing.T) {
	c, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	tree := ""
	for line := range strings.Lines(string(c)) {
		if fields := strings.Fields(line); strings.Contains(line, " - cgroup2 ") {
			tree = fields[4]
		}
	}
	group := filepath.Join(tree, "lodge-test-pressure")
	if err := os.Mkdir(group, 0o755); tree == "" || err != nil {
		t.Skip("no group of version 2 can be made here: ", err)
	}
	t.Cleanup(func() { _ = os.Remove(group) })
	w := watchLive(t, kernel.PressureTrigger{File: group + "/memory.pressure", Stall: time.Second, Window: 2 * time.Second})
	timer := time.AfterFunc(20*time.Millisecond, func() { _ = os.Remove(group) })
	defer timer.Stop()
	if err := w.Wait(deadline(t)); !fault.Is(err, fault.NotFound) {
		t.Errorf("the wait ends with %v", err)
	}
}
