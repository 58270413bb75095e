package kernel_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

// unit is systemd, which grants a group below its slice for guests.
type unit struct{ owner }

const unitGroup = "/machine.slice/lodge-guests.service"

func (*unit) Grant(string, string) (string, error) { return unitGroup, nil }

// memoryGroup returns the groups of the recorded host, the guest's memory, and the folder of its group.
func memoryGroup(t *testing.T) (*kernel.Cgroups, kernel.MemoryGroup, string) {
	t.Helper()
	dir := kerneltest.Dir(t, kerneltest.Memory)
	c := kernel.OpenOwnedCgroups(kernel.At(dir), "", &unit{})
	m, err := c.Guest("a").MemoryGroup()
	if err != nil {
		t.Fatal(err)
	}
	return c, m, filepath.Join(dir, "sys/fs/cgroup", unitGroup, "guest-a")
}

func TestMemoryGroup_Recorded(t *testing.T) {
	c, m, dir := memoryGroup(t)
	memory, err := m.Memory()
	if diff := cmp.Diff(kernel.GroupMemory{Current: 855638016, Swap: 12582912, High: kernel.Unlimited, Max: 2 << 30}, memory); diff != "" || err != nil {
		t.Error(diff, err)
	}
	counters, err := m.Counters()
	want := kernel.GroupMemoryCounters{
		Anon: 838860800, File: 8388608, Kernel: 4 << 20, Shmem: 4096, AnonHuge: 65011712, Zswap: 1 << 20, Zswapped: 3 << 20,
		RefaultAnon: 120, RefaultFile: 17, MajorFaults: 25, Scan: 1000, Steal: 900, LowEvents: 1, HighEvents: 2, MaxEvents: 3, OOMKills: 5,
	}
	if diff := cmp.Diff(want, counters); diff != "" || err != nil {
		t.Error(diff, err)
	}
	pressure, err := m.Pressure()
	if err != nil || pressure.Some.Avg10 != 3 || pressure.Full.Total != 23*time.Microsecond {
		t.Errorf("%+v, %v", pressure, err)
	}
	above, err := c.MemoryGroupsAbove()
	if err != nil || len(above) != 2 || above[0].Path() != "/sys/fs/cgroup"+unitGroup || above[1].Path() != "/sys/fs/cgroup/machine.slice" {
		t.Errorf("the groups above are %v, %v", above, err)
	}
	if m.PressureFile() != above[0].Path()+"/guest-a/memory.pressure" {
		t.Error(m.PressureFile())
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, err1 := m.Memory()
	_, err2 := m.Counters()
	_, err3 := m.Pressure()
	_, err4 := m.Reclaim(t.Context(), 4096)
	_, err5 := m.SetLow(4096)
	for _, err := range []error{err1, err2, err3, err4, err5} {
		if !fault.Is(err, fault.NotFound) {
			t.Errorf("of a group that is gone: %v", err)
		}
	}
}

func TestMemoryGroup_Bounds(t *testing.T) {
	_, m, dir := memoryGroup(t)
	if held, err := m.SetLow(512 << 20); held != 512<<20 || err != nil || content(t, dir, "memory.low") != "536870912" {
		t.Errorf("memory.low is %d, %v", held, err)
	}
	if held, err := m.SetHigh(1 << 30); held != 1<<30 || err != nil {
		t.Errorf("memory.high is %d, %v", held, err)
	}
	if held, err := m.SetHigh(kernel.Unlimited); held != kernel.Unlimited || err != nil || content(t, dir, "memory.high") != "max" {
		t.Errorf("memory.high is %d, %v", held, err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "memory.low")), os.Symlink("/dev/null", filepath.Join(dir, "memory.low"))); err != nil {
		t.Fatal(err)
	}
	if _, err := m.SetLow(4096); !fault.Is(err, fault.Busy) {
		t.Errorf("a value that does not stay: %v", err)
	}
}

func TestMemoryGroup_Reclaim(t *testing.T) {
	_, m, dir := memoryGroup(t)
	if freed, err := m.Reclaim(t.Context(), 100<<20); freed != 0 || err != nil {
		t.Errorf("of a group that keeps its memory came %d, %v", freed, err)
	}
	if got := content(t, dir, "memory.reclaim"); got != "37748736" { // the second step; a file keeps what was written last
		t.Errorf("the last step asks for %s", got)
	}
	reason := errors.New("enough")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(reason)
	if _, err := m.Reclaim(ctx, 4096); !errors.Is(err, reason) {
		t.Error(err)
	}
	overwrite(t, dir, map[string]string{"memory.reclaim": ""})
	if _, err := m.Reclaim(t.Context(), 4096); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "memory.reclaim") {
		t.Errorf("a kernel without it: %v", err)
	}
}

// A host of version 1, and one without the controller, are refused by name.
func TestMemoryGroup_Refused(t *testing.T) {
	for tree, want := range map[string]string{
		"proc/self/mountinfo = 30 23 0:26 / /c rw - cgroup cgroup rw,memory\nc/tasks = 1\n":           "version 1",
		"proc/self/mountinfo = 30 23 0:26 / /c rw - cgroup2 cgroup2 rw\nc/cgroup.controllers = cpu\n": "memory controller cannot be used",
		"proc/self/mountinfo = 23 1 0:21 / / rw - ext4 /dev/vda rw\n":                                 "not mounted",
	} {
		dir := t.TempDir()
		kerneltest.Write(t, dir, tree)
		c := kernel.OpenCgroups(kernel.At(dir), "")
		_, err := c.Guest("a").MemoryGroup()
		_, err2 := c.MemoryGroupsAbove()
		if !fault.Is(err, fault.Unsupported) || !fault.Is(err2, fault.Unsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v; want %q", err, err2, want)
		}
	}
}

// fillCache has a process in the group write a file of 32 MiB, whose pages in the cache then are the group's. The
// process stays.
func fillCache(t *testing.T, g *kernel.Group) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read go && head -c 33554432 /dev/zero >file && sync file && echo done && read end")
	cmd.Dir = t.TempDir()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // it ends with its input
	})
	if err := g.AddProcess(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// On a host of version 2 with the memory controller, a guest's group gives back a cache, and keeps what memory.low
// protects.
func TestMemoryGroup_Live(t *testing.T) {
	c := openLive(t, kernel.Root{})
	g := c.Guest("memory")
	m, err := g.MemoryGroup()
	if err != nil {
		t.Skip(err)
	}
	if err := g.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(g.Kill(context.Background()), g.Remove(context.Background())); err != nil {
			t.Error(err)
		}
	})
	if held, err := m.SetLow(1<<20 + 1); held != 1<<20 || err != nil {
		t.Errorf("memory.low is %d, %v", held, err)
	}
	if held, err := m.SetHigh(512 << 20); held != 512<<20 || err != nil {
		t.Errorf("memory.high is %d, %v", held, err)
	}
	fillCache(t, g)
	before, err := m.Memory()
	if err != nil || before.Current < 16<<20 {
		t.Fatalf("%+v, %v", before, err)
	}
	freed, err := m.Reclaim(t.Context(), 8<<20)
	if err != nil || freed < 4<<20 {
		t.Errorf("of 8 MiB came %d, %v", freed, err)
	}
	freed, err = m.Reclaim(t.Context(), 1<<40)
	if err != nil || freed > before.Current {
		t.Errorf("of all came %d of %d, %v", freed, before.Current, err)
	}
	if _, err := m.Counters(); err != nil {
		t.Error(err)
	}
	if _, err := m.Pressure(); err != nil && !fault.Is(err, fault.Unsupported) {
		t.Error(err)
	}
	watchLive(t, kernel.PressureTrigger{File: m.PressureFile(), Stall: time.Second, Window: 2 * time.Second})
}
