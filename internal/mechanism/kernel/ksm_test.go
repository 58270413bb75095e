package kernel_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

// overwrite replaces files of a tree; "" removes one.
func overwrite(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		at := filepath.Join(dir, name)
		err := os.Remove(at)
		if content != "" {
			err = errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func content(t *testing.T, elem ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestKSM_Recorded(t *testing.T) {
	got, err := kerneltest.Host(t, kerneltest.Memory).KSM()
	want := kernel.KSM{
		Run: kernel.KSMMerge, PagesShared: 20000, PagesSharing: 280000, PagesUnshared: 90000, PagesVolatile: 7000,
		PagesScanned: 4100000, PagesSkipped: 31000, FullScans: 41, ZeroPages: 5, GeneralProfit: 1 << 30,
		MergeAcrossNodes: true, SmartScan: true, AdvisorMode: kernel.KSMAdvisorScanTime, AdvisorMaxCPU: 70,
		AdvisorTargetScanTime: 200 * time.Second, AdvisorMinPages: 500, AdvisorMaxPages: 30000, PagesToScan: 1250, Sleep: 20 * time.Millisecond,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// An older kernel lacks files, and says so by their names. Without KSM there is nothing to read.
func TestKSM_OlderKernels(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	overwrite(t, dir, map[string]string{
		"sys/kernel/mm/ksm/advisor_mode": "", "sys/kernel/mm/ksm/smart_scan": "", "sys/kernel/mm/ksm/general_profit": "",
	})
	k, err := kernel.At(dir).KSM()
	if diff := cmp.Diff([]string{"general_profit", "smart_scan", "advisor_mode"}, k.Absent); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if k.Knows("smart_scan") || !k.Knows("run") {
		t.Error("it does not know what it knows")
	}
	back := k.Settings()
	if back.SmartScan != nil || back.AdvisorMode != nil || back.PagesToScan == nil || *back.PagesToScan != 1250 {
		t.Errorf("the settings to bring it back are %+v", back)
	}
	if err := kernel.At(dir).SetKSM(kernel.KSMSettings{SmartScan: new(true)}); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "/sys/kernel/mm/ksm/smart_scan") {
		t.Errorf("a setting that is not there: %v", err)
	}
	if _, err := kernel.At(t.TempDir()).KSM(); !fault.Is(err, fault.Unsupported) {
		t.Errorf("without KSM: %v", err)
	}
	overwrite(t, dir, map[string]string{"sys/kernel/mm/ksm/run": "yes\n"})
	if _, err := kernel.At(dir).KSM(); err == nil || !strings.Contains(err.Error(), `/sys/kernel/mm/ksm/run: it holds "yes"`) {
		t.Errorf("a file that is not understood: %v", err)
	}
}

func TestSetKSM_WritesAndRefusals(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	root, ksm := kernel.At(dir), filepath.Join(dir, "sys/kernel/mm/ksm")
	err := root.SetKSM(kernel.KSMSettings{PagesToScan: new(uint64(200))})
	if !fault.Is(err, fault.WrongState) || !strings.Contains(err.Error(), "scan-time") {
		t.Errorf("pages to scan while the advisor chooses them: %v", err)
	}
	err = root.SetKSM(kernel.KSMSettings{MergeAcrossNodes: new(false)})
	if !fault.Is(err, fault.Busy) || !strings.Contains(err.Error(), "pages_shared is 20000") {
		t.Errorf("nodes apart while pages are merged: %v", err)
	}
	if err := root.SetKSM(kernel.KSMSettings{MergeAcrossNodes: new(true)}); err != nil {
		t.Errorf("the value that it has: %v", err)
	}
	if err := root.SetKSM(kernel.KSMSettings{
		Run: new(kernel.KSMUnmerge), AdvisorMode: new(kernel.KSMAdvisorNone), PagesToScan: new(uint64(300)), Sleep: new(50 * time.Millisecond),
		SmartScan: new(false), AdvisorMaxCPU: new(uint64(20)), AdvisorTargetScanTime: new(time.Minute),
		AdvisorMinPages: new(uint64(100)), AdvisorMaxPages: new(uint64(4000)),
	}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"run": "2", "advisor_mode": "none", "pages_to_scan": "300", "sleep_millisecs": "50", "smart_scan": "0", "advisor_max_cpu": "20",
		"advisor_target_scan_time": "60", "advisor_min_pages_to_scan": "100", "advisor_max_pages_to_scan": "4000", "merge_across_nodes": "1",
	} {
		if got := content(t, ksm, file); got != want {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
}

// A refusal of one setting leaves those after it unwritten: nothing is merged by half of the settings.
func TestSetKSM_RunStartsLast(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	overwrite(t, dir, map[string]string{"sys/kernel/mm/ksm/run": "0\n", "sys/kernel/mm/ksm/smart_scan": ""})
	if err := kernel.At(dir).SetKSM(kernel.KSMSettings{Run: new(kernel.KSMMerge), SmartScan: new(true)}); err == nil {
		t.Error("a file that is missing was written")
	}
	if got := content(t, dir, "sys/kernel/mm/ksm/run"); got != "0" {
		t.Errorf("run holds %s", got)
	}
}

// Another program that writes the same file is found by reading back. Here, the file goes elsewhere.
func TestSetKSM_AnotherWriter(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	at := filepath.Join(dir, "sys/kernel/mm/ksm/smart_scan")
	if err := errors.Join(os.Remove(at), os.Symlink("/dev/null", at)); err != nil {
		t.Fatal(err)
	}
	if err := kernel.At(dir).SetKSM(kernel.KSMSettings{SmartScan: new(true)}); !fault.Is(err, fault.Busy) || !strings.Contains(err.Error(), `holds ""`) {
		t.Error(err)
	}
}

func TestKSMProcess(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	root := kernel.At(dir)
	got, err := root.KSMProcess(7)
	want := kernel.KSMProcess{Items: 130000, MergingPages: 100000, ZeroPages: 5, Profit: -320000, Mergeable: true}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	overwrite(t, dir, map[string]string{"proc/7/ksm_stat": "ksm_rmap_items 3\n", "proc/7/ksm_merging_pages": "2\n"}) // Linux 6.1
	got, err = root.KSMProcess(7)
	want = kernel.KSMProcess{Items: 3, MergingPages: 2, Absent: []string{"ksm_zero_pages", "ksm_process_profit", "ksm_merge_any", "ksm_mergeable"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error("Linux 6.1:", diff, err)
	}
	if _, err := root.KSMProcess(8); !fault.Is(err, fault.NotFound) {
		t.Errorf("no such process: %v", err)
	}
}

func TestKSMThread(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	p, err := kernel.At(dir).KSMThread()
	if err != nil || p.ID != 37 || p.System != 270*time.Millisecond {
		t.Errorf("ksmd is %+v, %v", p, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "proc/37")); err != nil {
		t.Fatal(err)
	}
	if p, err := kernel.At(dir).KSMThread(); !fault.Is(err, fault.NotFound) {
		t.Errorf("a process that took its name is %+v, %v", p, err)
	}
}

// restKSM returns the state of this host's KSM, if it may be changed: it rests, and no other test has it. It is
// brought back at the end.
func restKSM(t *testing.T) kernel.KSM {
	t.Helper()
	lock, err := os.Open("/sys/kernel/mm/ksm")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	before, err := kernel.Root{}.KSM()
	if err != nil {
		t.Skip(err)
	}
	if os.Geteuid() != 0 || before.Run != kernel.KSMStop || before.AdvisorMode == kernel.KSMAdvisorScanTime || before.PagesShared > 0 {
		t.Skipf("it needs root, and KSM that is not in use: %+v", before)
	}
	if err := (kernel.Root{}).SetKSM(before.Settings()); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := (kernel.Root{}).SetKSM(before.Settings()); err != nil {
			t.Error(err)
		}
		after, err := kernel.Root{}.KSM()
		if diff := cmp.Diff(before.Settings(), after.Settings()); diff != "" || err != nil {
			t.Errorf("not as before: %s%v", diff, err)
		}
	})
	return before
}

// The kernel takes and refuses settings of its advisor.
func TestKSM_LiveSettings(t *testing.T) {
	var live kernel.Root
	before := restKSM(t)
	if !before.Knows("advisor_mode") || !before.Knows("smart_scan") {
		t.Skip("this kernel has no advisor")
	}
	if err := live.SetKSM(kernel.KSMSettings{
		AdvisorMaxCPU: new(uint64(20)), AdvisorTargetScanTime: new(100 * time.Second), AdvisorMode: new(kernel.KSMAdvisorScanTime), SmartScan: new(!before.SmartScan),
	}); err != nil {
		t.Fatal(err)
	}
	k, err := live.KSM()
	if err != nil || k.AdvisorMode != kernel.KSMAdvisorScanTime || k.AdvisorMaxCPU != 20 || k.AdvisorTargetScanTime != 100*time.Second || k.SmartScan == before.SmartScan {
		t.Errorf("%+v, %v", k, err)
	}
	if err := live.SetKSM(kernel.KSMSettings{PagesToScan: new(uint64(200))}); !fault.Is(err, fault.WrongState) {
		t.Errorf("pages to scan under the advisor: %v", err)
	}
	if err := live.SetKSM(kernel.KSMSettings{AdvisorTargetScanTime: new(time.Duration(0))}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `it holds "100"`) {
		t.Errorf("a scan in no time: %v", err)
	}
}

// The kernel merges equal pages of this process, and gives them back.
func TestKSM_LiveMerge(t *testing.T) {
	if testing.Short() {
		t.Skip("it has ksmd scan for some seconds")
	}
	var live kernel.Root
	before := restKSM(t)
	const size = 16 << 20
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	for i := range memory {
		memory[i] = 0x5a
	}
	if err := errors.Join(unix.Madvise(memory, unix.MADV_NOHUGEPAGE), unix.Madvise(memory, unix.MADV_MERGEABLE)); err != nil {
		t.Fatal(err)
	}
	if err := live.SetKSM(kernel.KSMSettings{Run: new(kernel.KSMMerge), PagesToScan: new(uint64(10000)), Sleep: new(10 * time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	merged := awaitMerged(t, func(pages uint64) bool { return pages > size/2/uint64(os.Getpagesize()) })
	if p, err := live.KSMProcess(os.Getpid()); err != nil || !slices.Contains(p.Absent, "ksm_process_profit") && p.Profit <= 0 {
		t.Errorf("%d pages merged, and the process has %+v, %v", merged, p, err)
	}
	if m, err := live.MemoryRollup(os.Getpid()); err != nil || !slices.Contains(m.Absent, "KSM") && m.Merged < size/2 {
		t.Errorf("%+v, %v", m, err)
	}
	if before.Knows("merge_across_nodes") {
		if err := live.SetKSM(kernel.KSMSettings{MergeAcrossNodes: new(!before.MergeAcrossNodes)}); !fault.Is(err, fault.Busy) {
			t.Errorf("nodes apart while pages are merged: %v", err)
		}
	}
	if err := live.SetKSM(kernel.KSMSettings{Run: new(kernel.KSMUnmerge)}); err != nil {
		t.Fatal(err)
	}
	awaitMerged(t, func(pages uint64) bool { return pages == 0 })
}

// awaitMerged waits until so many pages of this process are merged.
func awaitMerged(t *testing.T, enough func(pages uint64) bool) uint64 {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx := deadline(t); ; {
		p, err := kernel.Root{}.KSMProcess(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if enough(p.MergingPages) {
			return p.MergingPages
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%+v", p)
		}
	}
}

// ksmd is a thread of this host's kernel, with processor time.
func TestKSMThread_Live(t *testing.T) {
	var live kernel.Root
	p, err := live.KSMThread()
	if fault.Is(err, fault.NotFound) {
		t.Skip(err)
	}
	if err != nil || p.Name != "ksmd" || p.Resident != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := live.Schedule(p.ID, p.ID); err != nil {
		t.Error(err)
	}
}
