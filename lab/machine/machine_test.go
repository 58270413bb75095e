package machine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func TestHostFacts(t *testing.T) {
	m := Machine{t.TempDir()}
	for path, text := range map[string]string{
		"proc/sys/kernel/osrelease": "6.12.1-amd64\n",
		"proc/meminfo":              "MemTotal:       24684092 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n",
		"proc/loadavg":              "0.52 0.58 0.59 1/100 4242\n",
		"proc/cpuinfo":              "processor\t: 0\nmodel name\t: Processor 9000\nflags\t\t: fpu vme hypervisor lm\n",
		"proc/stat":                 "cpu  100 10 20 800 40 5 5 20 7 7\ncpu0 1 2 3\n",
		"proc/42/status":            "Name:\tlodged\nVmRSS:\t   2048 kB\nRssAnon:\t1024 kB\nThreads:\t9\n",
		"proc/42/fd/3":              "",
		"proc/42/smaps_rollup":      "5 rollup\nRss:  4096 kB\nPss:  1030 kB\nPss_Anon: 2 kB\nPss_File: 6 kB\n",
		"proc/43/status":            "Name:\tgone\nThreads:\t1\n",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
	} {
		path = filepath.Join(m.Root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := m.Host()
	h.Processors = 0
	want := Host{
		Processor: "Processor 9000", Memory: 24684092 << 10, Kernel: "6.12.1-amd64",
		Governor: "performance", Virtual: true, Load: 0.52,
	}
	if h != want {
		t.Errorf("host %+v, want %+v", h, want)
	}
	if free := m.Memory("MemAvailable"); free != 2<<20 {
		t.Errorf("%d bytes are free", free)
	}
	if got := m.Ticks(); got != (Ticks{All: 1000, Stolen: 20}) {
		t.Errorf("ticks %+v", got)
	}
	if got := (Ticks{All: 1000, Stolen: 20}).StealSince(Ticks{All: 800, Stolen: 10}); got != 0.05 {
		t.Errorf("stolen %v", got)
	}
	if p, err := m.Process(42); err != nil || p != (Process{"lodged", 2 << 20, 1 << 20, 9}) {
		t.Errorf("process %+v, %v", p, err)
	}
	if files, err := m.Files(42); err != nil || files != 1 {
		t.Errorf("%d files, %v", files, err)
	}
	if own, err := m.OwnMemory(42); err != nil || own != 1<<20 {
		t.Errorf("own memory %d, %v", own, err)
	}
	for _, pid := range []int{43, 44} {
		if _, err := m.Process(pid); !fault.Is(err, fault.Failed) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}

func TestAccelerator(t *testing.T) {
	for want, args := range map[string][]string{
		"kvm":  {"-machine", "q35,usb=off", "-accel", "kvm"},
		"tcg":  {"-accel", "tcg,thread=multi"},
		"hvf":  {"-machine", "q35,accel=hvf,usb=off"},
		"xen":  {"-accel", "accel=xen"},
		"tcg ": {"-machine", "q35"},
	} {
		if got := Accelerator(args); got != want && got+" " != want {
			t.Errorf("%q: %s, want %s", args, got, want)
		}
	}
}

func TestProcessorTimeGrowsWithWork(t *testing.T) {
	before, err := ProcessorTime(os.Getpid())
	if err != nil || before <= 0 {
		t.Fatalf("%v s, %v", before, err)
	}
	for {
		after, err := ProcessorTime(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if after > before { // asking is work
			break
		}
	}
	if _, err := ProcessorTime(1 << 28); !fault.Is(err, fault.Failed) {
		t.Errorf("a process that is not there: %v", err)
	}
}
