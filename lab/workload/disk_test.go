package workload

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/bulk"
)

func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// fio itself does each profile, and what it says is read to the last request.
// Promise: L51
func TestBulkJobsInAFolder(t *testing.T) {
	if testing.Short() {
		t.Skip("runs fio for some seconds: not in -short")
	}
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("needs fio: install Debian's package")
	}
	dir := t.TempDir()
	for _, profile := range bulk.Profiles() {
		t.Run(profile, func(t *testing.T) {
			total := do(t, "bulk", Bulk{Duration: Duration(time.Second), Job: bulk.Job{Profile: profile, Dir: dir, Megabytes: 2, Threads: 2, Buffered: true}})
			writes := profile == "create" || profile == "random-write"
			got, none := total.Ops["read"], total.Ops["write"]
			if writes {
				got, none = none, got
			}
			if got.Done == 0 || got.Bytes < got.Done*8<<10 || got.Latency.TotalCount() != got.Done || none.Done != 0 || got.Errors != 0 {
				t.Errorf("%+v", total)
			}
			if profile == "create" && got.Bytes != 4<<20 {
				t.Errorf("%d bytes were written into two files of 2 MiB", got.Bytes)
			}
			empty(t, dir)
		})
	}
}

func TestFailedJobsAreErrors(t *testing.T) {
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("needs fio: install Debian's package")
	}
	load, err := New("bulk", json.RawMessage(`{"duration":"1s","profile":"create","dir":"/nowhere/at/all","megabytes":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := load.Run(t.Context(), func(i Interval) { t.Errorf("it did %v", i) }); !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "/nowhere/at/all") {
		t.Errorf("%v", err)
	}
}

func TestVarmailWorksInItsFolderAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	total := do(t, "varmail", Varmail{Pace: Pace{Mode: open, Arrivals: even, Rate: 50, Users: 4, Duration: Duration(400 * time.Millisecond), Timeout: Duration(2 * time.Minute)}, Mail: bulk.Mail{Dir: dir, Files: 40, Least: 100, Most: 20_000}})
	if all := total.All(); all.Errors != 0 {
		t.Errorf("%d errors: %s", all.Errors, all.Example)
	}
	cycles := total.Ops[bulk.OpDelete].Done
	if cycles != 20 || total.Ops[bulk.OpCreate].Done != cycles || total.Ops[bulk.OpAppend].Done != cycles || total.Ops[bulk.OpRead].Done != 2*cycles || total.Ops[OpSetup].Done != 40 {
		t.Errorf("%+v", total)
	}
	empty(t, dir)
}

func TestVarmailRefusesWhatDoesNotFit(t *testing.T) {
	dir := t.TempDir()
	data, err := json.Marshal(Varmail{Pace: Pace{Duration: Duration(time.Second)}, Mail: bulk.Mail{Dir: dir, Files: 10_000_000, Least: 64 << 20, Most: 64 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	load, err := New("varmail", data)
	if err != nil {
		t.Fatal(err)
	}
	if err := load.Run(t.Context(), func(Interval) {}); !fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), "MiB free") {
		t.Errorf("%v", err)
	}
	empty(t, dir)
}

func TestMixesDoEveryJob(t *testing.T) {
	cpu := do(t, "mix-cpu", MixCPU{Pace: Pace{Mode: open, Arrivals: even, Rate: 200, Users: 1, Duration: Duration(200 * time.Millisecond), Timeout: Duration(2 * time.Minute)}, Megabytes: 1})
	if all := cpu.All(); all.Errors != 0 || all.Done != 40 || len(cpu.Ops) != len(crunches) {
		t.Errorf("%+v", cpu)
	}
	dir := t.TempDir()
	disk := do(t, "mix-disk", MixDisk{Pace: Pace{Mode: open, Arrivals: even, Rate: 200, Users: 1, Duration: Duration(200 * time.Millisecond), Timeout: Duration(2 * time.Minute)}, Dir: dir, Megabytes: 1})
	if all := disk.All(); all.Errors != 0 || all.Done != 40 || len(disk.Ops) != len(filings) || all.Bytes == 0 {
		t.Errorf("%+v", disk)
	}
	empty(t, dir)
}
