package kernel

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func TestProcess_Own(t *testing.T) {
	var live Root
	p, err := live.Process(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if p.ID != os.Getpid() || p.Start == 0 || p.Resident == 0 || p.Threads == 0 {
		t.Errorf("this process reads as %+v", p)
	}
	threads, err := live.Threads(os.Getpid())
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads %v, %v", threads, err)
	}
	memory, err := live.ProcessMemory(os.Getpid())
	if err != nil || memory.Resident == 0 || memory.Virtual < memory.Resident {
		t.Errorf("memory %+v, %v", memory, err)
	}
	if io, err := live.ProcessIO(os.Getpid()); err != nil || io.ReadBytes == 0 {
		t.Errorf("io %+v, %v", io, err)
	}
}

// The processor time of a busy thread is counted for that thread.
func TestThreadTime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var live Root
	tid := syscall.Gettid()
	before, err := live.Schedule(os.Getpid(), tid)
	if fault.Is(err, fault.NotFound) {
		t.Skip("this kernel keeps no account of scheduling")
	}
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Millisecond); time.Now().Before(end); {
	}
	after, err := live.Schedule(os.Getpid(), tid)
	if err != nil || after.Run <= before.Run {
		t.Errorf("run time went from %v to %v, %v", before.Run, after.Run, err)
	}
}

func TestProcess_Missing(t *testing.T) {
	var live Root
	const never = 1<<22 + 1 // above the highest pid_max
	if _, err := live.Process(never); !fault.Is(err, fault.NotFound) {
		t.Errorf("process: %v", err)
	}
	if _, err := live.Threads(never); !fault.Is(err, fault.NotFound) {
		t.Errorf("threads: %v", err)
	}
	if _, err := live.Schedule(os.Getppid(), os.Getpid()); !fault.Is(err, fault.NotFound) {
		t.Errorf("a thread of another process: %v", err)
	}
}

const statTail = ` S 1 10 10 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 7 0 12345 1000000 300 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0`

func TestParseStat(t *testing.T) {
	for _, name := range []string{"qemu-system-x86", "CPU 0/KVM", "a) S 1 (b", ")", ""} {
		p, ok := parseStat("42 (" + name + ")" + statTail)
		if !ok || p.Name != name || p.ID != 42 || p.Start != 12345 || p.User != 2500*time.Millisecond || p.Threads != 7 || p.Processor != 3 {
			t.Errorf("the line of %q reads as %+v, %v", name, p, ok)
		}
	}
	for _, line := range []string{"", "42", "42 (x", "42 x) S", "42 (x) S 1", "(x)" + statTail, "x (x)" + statTail} {
		if p, ok := parseStat(line); ok {
			t.Errorf("%q reads as %+v", line, p)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("42 (CPU 0/KVM)" + statTail)
	f.Fuzz(func(t *testing.T, line string) {
		p, ok := parseStat(line)
		if !ok {
			return
		}
		if !strings.Contains(line, "("+p.Name+")") || p.User < 0 || p.System < 0 {
			t.Errorf("%q reads as %+v", line, p)
		}
		// The name that a program chooses cannot forge another field.
		end := strings.LastIndexByte(line, ')')
		if again, ok := parseStat("1 (" + line); !ok || again.ID != 1 || again.Name != line[:end] || again.Start != p.Start {
			t.Errorf("%q as a name reads as %+v", line, again)
		}
	})
}
