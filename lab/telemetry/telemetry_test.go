package telemetry

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Two looks at recorded trees, two seconds apart.
func TestASecondOfAHost(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"proc/stat":         "cpu  100 0 50 1000 10 0 5 20 0 0\ncpu0 1 1 1 1 1 1 1 1\nctxt 1000\n",
		"proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"proc/meminfo":      "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 500 kB\n",
		"proc/diskstats":    " 8 0 sda 10 0 100 5 20 0 200 7 0 30 12\n 8 1 sda1 10 0 100 5 20 0 200 7 0 30 12\n",
		"proc/net/dev":      "Inter-| x\n lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n  eth0: 1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0\n",
		"sys/block/sda/x":   "", "sys/kernel/mm/ksm/pages_sharing": "3\n",
	})
	h := &Host{Root: root}
	start := time.Unix(1000, 0)
	before := h.Read(start)
	if before["memory_available_bytes"] != 500<<10 || before["ksm_sharing_bytes"] != 3*float64(os.Getpagesize()) {
		t.Errorf("levels %v", before)
	}
	if _, ok := before["cpu_busy_cores"]; ok {
		t.Error("a rate out of one look")
	}
	write(t, root, map[string]string{
		"proc/stat":         "cpu  300 0 100 1000 10 0 55 40 0 0\nctxt 3000\n",
		"proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\n",
		"proc/diskstats":    " 8 0 sda 30 0 300 5 20 0 1200 7 0 1030 12\n",
		"proc/net/dev":      "  eth0: 500 12 0 0 0 0 0 0 6000 20 0 0 0 0 0 0\n",
	})
	got := h.Read(start.Add(2 * time.Second))
	for name, want := range map[string]float64{
		"cpu_busy_cores": 1.5, "cpu_steal_cores": 0.1, "cpu_user_cores": 1, "pressure_cpu_some_share": 0.5, "context_switches": 1000,
		"disk_reads": 10, "disk_read_bytes": 100 * 512, "disk_written_bytes": 500 * 512, "disk_busy_share": 0.5,
		"net_in_packets": 1, "net_out_bytes": 2000,
	} {
		if math.Abs(got[name]-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if value, ok := got["net_in_bytes"]; ok {
		t.Errorf("a counter that fell tells %v", value)
	}
}

func TestThisHostIsRead(t *testing.T) {
	h := &Host{Root: "/"}
	if values := h.Read(time.Now()); values["memory_available_bytes"] <= 0 {
		t.Errorf("%v", values)
	}
}
