package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// openLive returns the groups of an instance of the test's own on the live host.
func openLive(t *testing.T, root kernel.Root) *kernel.Cgroups {
	t.Helper()
	c := kernel.OpenCgroups(root, fmt.Sprintf("test-%d", os.Getpid()))
	if c.Version() == 0 {
		t.Skip("this host has no usable control groups: ", c.Absent())
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestMain lets the test binary be the process that is put into groups: one with
// several threads, which runs until it is killed or its input ends.
func TestMain(m *testing.M) {
	if tree := os.Getenv("KERNEL_TEST_KILL"); tree != "" {
		killWithin(tree)
		return
	}
	if size := os.Getenv(pagesVariable); size != "" {
		takePages(size)
		return
	}
	if os.Getenv("KERNEL_TEST_STAY") == "" {
		os.Exit(m.Run())
	}
	_, _ = fmt.Fprintln(os.Stdout, "ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with its parent
}

// stayer starts such a process, and reaps it when it ends.
func stayer(t *testing.T) (pid int) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
	cmd.Env = append(os.Environ(), "KERNEL_TEST_STAY=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		_ = in.Close()
		<-ended
	})
	return cmd.Process.Pid
}

// groupOf returns the kernel's list of a thread's groups.
func groupOf(t *testing.T, pid, tid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/cgroup", pid, tid))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The steps of a guest's start and end, on the live host's own control groups.
func testGroupLife(t *testing.T, c *kernel.Cgroups) {
	t.Helper()
	ctx := deadline(t)
	g := c.Guest("web/1")
	t.Cleanup(func() {
		if err := errors.Join(g.Kill(context.WithoutCancel(ctx)), g.Remove(context.WithoutCancel(ctx))); err != nil {
			t.Error(err)
		}
	})
	pid := stayer(t)
	tids, err := kernel.Root{}.ThreadIDs(pid)
	if err != nil || len(tids) < 2 {
		t.Fatalf("the process has threads %v, %v", tids, err)
	}
	vcpu, tid := g.Threads("vcpu0"), tids[1]
	for _, step := range []func() error{
		g.Create, g.Create, func() error { return g.AddProcess(pid) },
		vcpu.Create, func() error { return vcpu.AddThread(tid) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if main, one := groupOf(t, pid, pid), groupOf(t, pid, tid); strings.Contains(main, "vcpu0") || !strings.Contains(one, "guest-web%2f1/vcpu0") {
		t.Errorf("the first thread is in\n%sand the one that was moved in\n%s", main, one)
	}
	pids, err := g.Processes()
	if err != nil || !slices.Equal(pids, []int{pid}) {
		t.Errorf("the group has processes %v, %v", pids, err)
	}
	stats, err := g.Stats()
	if err != nil {
		t.Error(err)
	}
	if c.Has(kernel.PIDsController) && stats.Threads < 2 {
		t.Errorf("the group uses %+v", stats)
	}
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if err := g.Remove(short); !fault.Is(err, fault.Busy) {
		t.Errorf("removing a group in use gives %v", err)
	}
	if err := g.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(ctx); err != nil {
		t.Fatal(err)
	}
	if err := g.AddProcess(os.Getpid()); !fault.Is(err, fault.NotFound) {
		t.Errorf("joining a removed group gives %v", err)
	}
	if _, err := g.Stats(); !fault.Is(err, fault.NotFound) {
		t.Errorf("the use of a removed group gives %v", err)
	}
}

func TestGroup_Life(t *testing.T) {
	testGroupLife(t, openLive(t, kernel.Root{}))
}

// openUnified returns an instance on the version 2 tree of a host that may mount
// both, as if it were the only one.
func openUnified(t *testing.T) *kernel.Cgroups {
	t.Helper()
	mount := ""
	for _, path := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(path, "cgroup.controllers")); err == nil {
			mount = path
			break
		}
	}
	if mount == "" {
		t.Skip("this host mounts no version 2 control groups")
	}
	dir := t.TempDir()
	kerneltest.Write(t, dir, "mnt -> "+mount+"\nproc/self/mountinfo = 41 31 0:37 / /mnt rw - cgroup2 cgroup2 rw\n")
	c := openLive(t, kernel.At(dir))
	if c.Version() != 2 {
		t.Fatalf("the version is %d", c.Version())
	}
	return c
}

func TestGroup_LifeUnified(t *testing.T) { testGroupLife(t, openUnified(t)) }

// pagesVariable makes the test binary take a huge page of this size when it reads a line.
const pagesVariable = "KERNEL_TEST_PAGES"

func takePages(size string) {
	n, err := strconv.Atoi(size)
	if err == nil {
		_, err = os.Stdin.Read(make([]byte, 1))
	}
	if err == nil {
		_, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// withHugePages makes the host set aside some huge pages for the test, and returns their size.
func withHugePages(t *testing.T) int {
	t.Helper()
	const knob = "/proc/sys/vm/nr_hugepages"
	before, err := os.ReadFile(knob)
	if err != nil {
		t.Skip("this kernel has no huge pages: ", err)
	}
	had, err := strconv.Atoi(strings.TrimSpace(string(before)))
	if err == nil {
		err = os.WriteFile(knob, fmt.Appendf(nil, "%d", had+2), 0)
	}
	if err != nil {
		t.Skip("no huge pages can be had: ", err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(knob, before, 0); err != nil {
			t.Error(err)
		}
	})
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, size, _ := strings.Cut(string(text), "Hugepagesize:")
	kib, err := strconv.Atoi(strings.Fields(size)[0])
	if err != nil {
		t.Fatal(err)
	}
	if free, err := os.ReadFile(fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/free_hugepages", kib)); err != nil || string(free) == "0\n" {
		t.Skip("no huge pages are free: ", err)
	}
	return kib << 10
}

// TestGroup_HugePages: the processes of a group get as many of the host's huge pages as the group's limit allows,
// and can reserve no others. A memory limit does not count huge pages.
// Promise: I2
func TestGroup_HugePages(t *testing.T) {
	for version, open := range map[int]func(*testing.T) *kernel.Cgroups{
		1: func(t *testing.T) *kernel.Cgroups { t.Helper(); return openLive(t, kernel.Root{}) }, 2: openUnified,
	} {
		t.Run(strconv.Itoa(version), func(t *testing.T) {
			c := open(t)
			if !c.Has(kernel.HugePages) {
				t.Skip("this host does not control huge pages: ", c.Absent()[kernel.HugePages])
			}
			size := withHugePages(t)
			g := c.Guest("pages")
			if err := g.Create(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := g.Remove(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			})
			for most, takes := range map[uint64]bool{0: false, uint64(size): true, kernel.Unlimited: true} {
				if absent, err := g.Apply(kernel.Limits{HugePages: map[uint64]uint64{uint64(size): most}}); err != nil {
					t.Fatal(err)
				} else if len(absent) > 0 {
					t.Skip("this host cannot set ", absent)
				}
				if said := takesPages(t, g, size); (said == "") != takes {
					t.Errorf("with a bound of %d bytes it says %q", most, said)
				}
			}
		})
	}
}

// takesPages makes a process in the group take a huge page, and returns its output if it gets none.
func takesPages(t *testing.T, g *kernel.Group, size int) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), pagesVariable+"="+strconv.Itoa(size))
	var said strings.Builder
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		err = g.AddProcess(cmd.Process.Pid)
	}
	if err == nil {
		_, err = in.Write([]byte("\n"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		return said.String() + err.Error()
	}
	return ""
}

func TestLimits_LiveHost(t *testing.T) {
	c := openLive(t, kernel.Root{})
	if c.Version() != 1 {
		t.Skip("this is for hosts with version 1 control groups")
	}
	g := c.Guest("limits")
	if err := g.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	want := kernel.Limits{
		CPUShares: new(uint64(2048)), CPUPeriod: new(uint64(50000)), CPUQuota: new(uint64(20000)),
		CPUs: new(topology.CPUs(0)), Cells: new(topology.CPUs(0)),
		MemoryHard: new(uint64(512 << 20)), MemorySoft: new(uint64(256 << 20)), MemorySwap: new(uint64(600 << 20)),
		PIDs: new(uint64(100)),
	}
	absent, err := g.Apply(want)
	if err != nil {
		t.Fatal(err)
	}
	if len(absent) > 0 {
		t.Skip("this host cannot set ", absent)
	}
	got, err := g.Limits()
	if err != nil {
		t.Fatal(err)
	}
	got.BlockWeight = nil // depends on the I/O scheduler
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// Both grow past the old sum, then shrink below it: the order matters.
	for _, size := range []uint64{2 << 30, 256 << 20} {
		if _, err := g.Apply(kernel.Limits{MemoryHard: new(size), MemorySwap: new(size)}); err != nil {
			t.Errorf("to %d: %v", size, err)
		}
	}
	if _, err := g.Apply(kernel.Limits{CPUPeriod: new(uint64(1))}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a period of 1 µs gives %v", err)
	}
	if _, err := g.Apply(kernel.Limits{MemoryHard: new(uint64(kernel.Unlimited)), MemorySwap: new(uint64(kernel.Unlimited)), CPUQuota: new(uint64(kernel.Unlimited))}); err == nil {
		if got, _ := g.Limits(); *got.CPUQuota != kernel.Unlimited {
			t.Errorf("no quota reads as %d", *got.CPUQuota)
		}
	}
}

// unified writes a version 2 tree of plain files, which keep the values written to them.
func unified(t *testing.T) (*kernel.Cgroups, string) {
	t.Helper()
	dir := t.TempDir()
	kerneltest.Write(t, dir, `proc/self/mountinfo = 30 23 0:26 / /sys/fs/my\040cgroup rw shared:4 - cgroup2 cgroup2 rw
cg/cgroup.subtree_control = cpuset cpu memory pids
cg/lodge/cgroup.subtree_control = cpuset cpu memory pids
cg/lodge/guest-a/cpu.weight = 100
cg/lodge/guest-a/cpu.max = max 100000
cg/lodge/guest-a/cpuset.cpus = 0-3
cg/lodge/guest-a/cpuset.mems = 
cg/lodge/guest-a/memory.max = max
cg/lodge/guest-a/memory.high = max
cg/lodge/guest-a/memory.swap.max = max
cg/lodge/guest-a/memory.current = 4096
cg/lodge/guest-a/pids.max = max
cg/lodge/guest-a/cpu.stat:
usage_usec 1500
user_usec 1000
system_usec 500
throttled_usec 7
`)
	if err := os.MkdirAll(filepath.Join(dir, "sys/fs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../cg", filepath.Join(dir, "sys/fs/my cgroup")); err != nil {
		t.Fatal(err)
	}
	c := kernel.OpenCgroups(kernel.At(dir), "")
	if c.Version() != 2 {
		t.Fatalf("the made-up tree is not used: %v", c.Absent())
	}
	return c, filepath.Join(dir, "cg/lodge/guest-a")
}

// killWithin kills the processes in a group of a made-up tree, and prints that it survived.
func killWithin(tree string) {
	ctx, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	err := kernel.OpenCgroups(kernel.At(tree), "").Guest("a").Kill(ctx)
	_, _ = fmt.Fprintln(os.Stdout, "still there:", err)
}

// The kernel lists a process of the group that is outside this PID namespace as 0. A signal to 0 would reach
// every process in the daemon's own process group.
// Promise: I1, I21
func TestKill_PIDOutsideNamespace(t *testing.T) {
	_, dir := unified(t)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "KERNEL_TEST_KILL="+strings.TrimSuffix(dir, "/cg/lodge/guest-a"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that it can only kill itself
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "still has processes") {
		t.Errorf("%v: %s", err, out)
	}
}

// A process that was listed may have ended since: another process that has its number by then must survive.
// Promise: I21
func TestKill_ProcessLeftGroup(t *testing.T) {
	c, dir := unified(t)
	pid := stayer(t)
	list, empty := filepath.Join(dir, "cgroup.procs"), filepath.Join(dir, "empty")
	if err := errors.Join(syscall.Mkfifo(list, 0o600), os.WriteFile(empty, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(list, os.O_WRONLY, 0) // returns once Kill reads the list
		if err == nil {
			err = os.Rename(empty, list) // and the list is empty afterwards
			_, e := fmt.Fprintln(f, pid)
			err = errors.Join(err, e, f.Close())
		}
		told <- err
	}()
	if err := errors.Join(c.Guest("a").Kill(deadline(t)), <-told); err != nil {
		t.Fatal(err)
	}
	if p, err := (kernel.Root{}).Process(pid); err != nil || p.State == 'Z' {
		t.Errorf("a process that is not in the group was killed: %c, %v", p.State, err)
	}
}

// If a daemon is killed between the two halves of a new cpuset, the next daemon fills the second one.
// Promise: F1
func TestGroup_CPUSetHalfFilled(t *testing.T) {
	dir := t.TempDir()
	kerneltest.Write(t, dir, `proc/self/mountinfo = 30 23 0:26 / /c rw - cgroup cgroup rw,cpuset
c/cpuset.cpus = 0-3
c/cpuset.mems = 0
c/lodge/cpuset.cpus = 0-3
c/lodge/cpuset.mems = 
c/lodge/guest-a/cpuset.cpus = 2
c/lodge/guest-a/cpuset.mems = 
`)
	if err := kernel.OpenCgroups(kernel.At(dir), "").Guest("a").Create(); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cpuset.mems": "0", "guest-a/cpuset.mems": "0", "guest-a/cpuset.cpus": "2"} {
		if got, err := os.ReadFile(filepath.Join(dir, "c/lodge", file)); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s is %q, want %q (%v)", file, got, want, err)
		}
	}
}

func TestLimits_Unified(t *testing.T) {
	c, dir := unified(t)
	g := c.Guest("a")
	absent, err := g.Apply(kernel.Limits{
		CPUShares: new(uint64(200)), CPUQuota: new(uint64(50000)), CPUs: new(topology.CPUs(0, 2)),
		MemoryHard: new(uint64(1 << 30)), MemorySwap: new(uint64(3 << 30)), BlockWeight: new(uint64(500)), PIDs: new(uint64(64)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"block weight"}, absent); diff != "" {
		t.Error("absent limits:", diff)
	}
	for file, want := range map[string]string{
		"cpu.weight": "200", "cpu.max": "50000 100000", "cpuset.cpus": "0,2", "memory.max": "1073741824",
		"memory.swap.max": "2147483648", "memory.high": "max\n", "pids.max": "64",
	} {
		got, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || string(got) != want {
			t.Errorf("%s holds %q, want %q, %v", file, got, want, err)
		}
	}
	got, err := g.Limits()
	if err != nil {
		t.Fatal(err)
	}
	if *got.MemorySwap != 3<<30 || *got.CPUQuota != 50000 || *got.CPUPeriod != 100000 || *got.MemorySoft != kernel.Unlimited || got.BlockWeight != nil {
		t.Errorf("the limits read back as swap %d, quota %d/%d", *got.MemorySwap, *got.CPUQuota, *got.CPUPeriod)
	}
	stats, err := g.Stats()
	want := kernel.GroupStats{
		CPU: 1500 * time.Microsecond, User: time.Millisecond, System: 500 * time.Microsecond, Throttled: 7 * time.Microsecond, Memory: 4096,
	}
	if diff := cmp.Diff(want, stats); diff != "" || err != nil {
		t.Error("use:", diff, err)
	}
}

// Guests also run on hosts without control groups: groups have no effect there, and report that.
func TestCgroups_None(t *testing.T) {
	for name, mount := range map[string]string{
		"no mount":          "23 1 0:21 / / rw - ext4 /dev/vda rw",
		"not writable here": "30 23 0:26 / /gone rw - cgroup cgroup rw,cpu,cpuacct",
		"nor here":          "30 23 0:26 / /gone rw - cgroup2 cgroup2 rw",
	} {
		dir := t.TempDir()
		kerneltest.Write(t, dir, "proc/self/mountinfo = "+mount+"\n")
		testNoGroups(t, name, kernel.OpenCgroups(kernel.At(dir), "x"))
	}
	testNoGroups(t, "no /proc", kernel.OpenCgroups(kernel.At(t.TempDir()), "x"))
}

func testNoGroups(t *testing.T, name string, c *kernel.Cgroups) {
	t.Helper()
	if c.Version() != 0 || len(c.Absent()) != 8 || c.Absent()[kernel.CPUController] == "" {
		t.Errorf("%s: version %d, absent %v", name, c.Version(), c.Absent())
	}
	g := c.Guest("a")
	vcpu := g.Threads("vcpu0")
	ctx := deadline(t)
	if err := errors.Join(g.Create(), g.AddProcess(1), vcpu.Create(), vcpu.AddThread(1), g.Kill(ctx), g.Remove(ctx), c.Close()); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if absent, err := g.Apply(kernel.Limits{CPUShares: new(uint64(1)), PIDs: new(uint64(1))}); err != nil || len(absent) != 2 {
		t.Errorf("%s: absent %v, %v", name, absent, err)
	}
	if _, err := g.Stats(); !fault.Is(err, fault.Unsupported) {
		t.Errorf("%s: the use gives %v", name, err)
	}
}
