package guest

import (
	"encoding/json"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/qmptest"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// subject is a guest with a scripted QEMU and a process that sleeps.
type subject struct {
	*machine.Guest
	t       *testing.T
	monitor *qmptest.Monitor
	asked   int // questions that a test has looked at
	written int // bytes that the disk has written
}

func newSubject(t *testing.T, devices device.Set) *subject {
	t.Helper()
	meter, err := hostnet.OpenMeter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(meter.Close)
	r := newRegistry(machine.Config{Log: slog.New(slog.DiscardHandler)})
	r.Meter = meter
	s := &subject{t: t, monitor: qmptest.New(t), Guest: newGuest(r, "subject", "11111111-2222-3333-4444-555555555555")}
	s.script()
	session, err := qmp.New(t.Context(), s.monitor.Conn(), r.Log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	process := exec.CommandContext(t.Context(), "sleep", "1h")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	live := machine.NewInstance(machine.RunRecord{PID: process.Process.Pid}, t.TempDir(), r.Kernel, r.Log)
	live.Session.Store(session)
	s.Live.Store(live)
	s.publishAs(domain.Running, &domain.Definition{Memory: 64 << 20, CurrentMemory: 32 << 20, VCPUs: domain.VCPUs{Max: 1, Current: 1}, Devices: devices})
	return s
}

// script answers every question that a sample may need.
func (s *subject) script() {
	s.monitor.Answer("qmp_capabilities", func(json.RawMessage) (any, error) { return map[string]any{}, nil })
	s.monitor.Answer("query-cpus-fast", func(json.RawMessage) (any, error) {
		return []any{map[string]any{"cpu-index": 0, "qom-path": "/machine/cpu", "thread-id": s.Live.Load().PID, "target": "x86_64"}}, nil
	})
	s.monitor.Answer("qom-get", func(json.RawMessage) (any, error) {
		return map[string]any{"last-update": 7, "stats": map[string]uint64{"stat-free-memory": 4096, "stat-swap-in": statistics.Unset}}, nil
	})
	s.monitor.Answer("query-blockstats", func(json.RawMessage) (any, error) {
		s.written += 512
		return []any{map[string]any{"qdev": "/machine/peripheral/virtio-disk0", "stats": traffic(s.written)}}, nil
	})
	s.monitor.Answer("query-block", func(json.RawMessage) (any, error) {
		image := map[string]any{"filename": "/disk", "format": "raw", "virtual-size": 4096, "actual-size": 512}
		return []any{map[string]any{"device": "", "qdev": "/machine/peripheral/virtio-disk0", "locked": false, "removable": false, "type": "unknown", "inserted": inserted(image)}}, nil
	})
}

func traffic(written int) map[string]any {
	stats := map[string]any{"account_invalid": true, "account_failed": true, "timed_stats": []any{}}
	for _, name := range []string{
		"rd_bytes", "wr_bytes", "unmap_bytes", "rd_operations", "wr_operations", "flush_operations", "unmap_operations",
		"rd_total_time_ns", "wr_total_time_ns", "flush_total_time_ns", "unmap_total_time_ns", "wr_highest_offset",
		"rd_merged", "wr_merged", "unmap_merged", "failed_rd_operations", "failed_wr_operations", "failed_flush_operations",
		"failed_unmap_operations", "invalid_rd_operations", "invalid_wr_operations", "invalid_flush_operations", "invalid_unmap_operations",
	} {
		stats[name] = 0
	}
	stats["wr_bytes"] = written
	return stats
}

func inserted(image map[string]any) map[string]any {
	all := map[string]any{
		"file": "/disk", "ro": false, "drv": "raw", "backing_file_depth": 0, "encrypted": false, "detect_zeroes": "off", "write_threshold": 0,
		"image": image, "cache": map[string]any{"no-flush": false, "direct": false, "writeback": true},
	}
	for _, name := range []string{"bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"} {
		all[name] = 0
	}
	return all
}

func (s *subject) publishAs(state domain.State, def *domain.Definition) {
	s.LastView.Store(&machine.View{Name: "subject", State: state, Since: time.Now(), Active: def})
}

// sample takes one and tells what QEMU was asked for it.
func (s *subject) sample(last *machine.Stats, thorough bool) (st *machine.Stats, asked []string) {
	s.t.Helper()
	st, err := statistics.Measure(s.t.Context(), s.Guest, last, thorough, func(*machine.Stats) {})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range s.monitor.Calls() {
		if c.Command != "qmp_capabilities" {
			asked = append(asked, c.Command)
		}
	}
	fresh := asked[s.asked:]
	s.asked = len(asked)
	return st, fresh
}

var everything = device.Set{
	Disks:   []*device.Disk{{Info: device.Info{Alias: "virtio-disk0"}, Target: "vda", Source: &device.DiskSource{File: "/disk"}}},
	Balloon: &device.Balloon{Info: device.Info{Alias: "balloon0"}, Model: "virtio"},
	NICs:    []*device.NIC{{Target: "lo", MAC: "52:54:00:00:00:01"}, {Target: "no-such-link"}},
}

// The first sample asks for everything, the next for what changes in a running guest, and in a paused guest
// for nothing.
func TestMeasure_Queries(t *testing.T) {
	s := newSubject(t, everything)
	thorough := []string{"query-cpus-fast", "qom-get", "query-blockstats", "query-block"}
	first, asked := s.sample(nil, false)
	if !slices.Equal(asked, thorough) {
		t.Errorf("for the first sample QEMU was asked %v", asked)
	}
	if d := first.Disks[0]; d.Capacity != 4096 || d.Physical != 512 || d.WriteBytes != 512 {
		t.Errorf("the disk: %+v", d)
	}
	free, reported := statistics.Figure(&first.Balloon, machine.FreeMemory)
	if _, swapped := statistics.Figure(&first.Balloon, machine.SwappedIn); !reported || free != 4096 || swapped || first.Balloon.Updated.Unix() != 7 {
		t.Errorf("the balloon: %+v", first.Balloon)
	}
	if len(first.VCPUs) != 1 || len(first.NICs) != 2 || first.NICs[0].IfName != "lo" || first.NICs[0].Index == 0 || first.NICs[1].IfName != "" {
		t.Errorf("what the kernel tells: %+v", first)
	}
	second, asked := s.sample(first, false)
	if !slices.Equal(asked, []string{"query-blockstats"}) || second.Disks[0].WriteBytes != 1024 || second.Disks[0].Capacity != 4096 || first.Disks[0].WriteBytes != 512 {
		t.Errorf("for the second QEMU was asked %v; disks %+v, after %+v", asked, second.Disks, first.Disks)
	}
	if free, _ := statistics.Figure(&second.Balloon, machine.FreeMemory); free != 4096 || len(second.VCPUs) != 1 {
		t.Errorf("the second sample lacks kept values: %+v", second)
	}
	s.publishAs(domain.Paused, s.View().Active)
	third, asked := s.sample(second, false) // the last sample is older than the pause
	if !slices.Equal(asked, []string{"query-blockstats"}) {
		t.Errorf("when it was paused just now QEMU was asked %v", asked)
	}
	fourth, asked := s.sample(third, false)
	if len(asked) != 0 || fourth.Disks[0].WriteBytes != third.Disks[0].WriteBytes || !fourth.At.After(third.At) || len(fourth.VCPUs) != 1 {
		t.Errorf("while it is paused QEMU was asked %v; disks %+v", asked, fourth.Disks)
	}
	if _, asked = s.sample(fourth, true); !slices.Equal(asked, thorough) {
		t.Errorf("for a fresh sample QEMU was asked %v", asked)
	}
	old := *fourth
	old.Thorough = time.Now().Add(-statistics.PausedPeriod)
	if _, asked = s.sample(&old, false); !slices.Equal(asked, thorough) {
		t.Errorf("after a long while QEMU was asked %v", asked)
	}
	changed := *s.View().Active
	s.publishAs(domain.Running, &changed)
	if _, asked = s.sample(fourth, false); !slices.Equal(asked, thorough) {
		t.Errorf("after a change of the definition QEMU was asked %v", asked)
	}
}

// A guest without devices is not asked about them. A guest that reports memory statistics is asked for these.
func TestMeasure_NoDevices(t *testing.T) {
	s := newSubject(t, device.Set{})
	first, asked := s.sample(nil, false)
	if !slices.Equal(asked, []string{"query-cpus-fast"}) {
		t.Errorf("at first QEMU was asked %v", asked)
	}
	if _, asked = s.sample(first, false); len(asked) != 0 {
		t.Errorf("then QEMU was asked %v", asked)
	}
	s = newSubject(t, device.Set{Balloon: &device.Balloon{Info: device.Info{Alias: "balloon0"}, Model: "virtio", StatsPeriod: 2}})
	first, _ = s.sample(nil, false)
	if _, asked = s.sample(first, false); !slices.Equal(asked, []string{"qom-get"}) {
		t.Errorf("with a balloon that reports QEMU was asked %v", asked)
	}
}

// The kernel shows that the process is stopped. The kernel's own counters are still returned.
func TestMeasure_StoppedProcess(t *testing.T) {
	s := newSubject(t, everything)
	pid := s.Live.Load().PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus // the stop is over when the parent can see it
	if _, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the process did not stop: %v, %v", status, err)
	}
	var early *machine.Stats
	st, err := statistics.Measure(t.Context(), s.Guest, nil, false, func(st *machine.Stats) { early = st })
	if !fault.Is(err, fault.Timeout) || st != nil || early == nil || early.Balloon.Current != 32<<20 {
		t.Errorf("of a stopped process there is %+v, %v, at first %+v", st, err, early)
	}
	if calls := s.monitor.Calls(); len(calls) != 1 {
		t.Errorf("a stopped QEMU was asked %v", calls)
	}
	s.Live.Load().MonitorLost()
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for { // until the kernel has it running again
		_, err = statistics.Measure(t.Context(), s.Guest, nil, false, func(*machine.Stats) {})
		if fault.Is(err, fault.Unresponsive) {
			break
		}
		if !fault.Is(err, fault.Timeout) {
			t.Fatalf("of a guest without a monitor: %v", err)
		}
	}
	s.Live.Store(nil)
	if _, err := statistics.Measure(t.Context(), s.Guest, nil, false, func(*machine.Stats) {}); !fault.Is(err, fault.WrongState) {
		t.Errorf("of a guest that does not run: %v", err)
	}
	if st := statistics.Sample(s.Guest); st != nil {
		t.Errorf("a guest that does not run has %+v", st)
	}
}

// FuzzDiskAnswers: whatever QEMU answers about its disks, a sample of them is no
// larger than the definition allows.
func FuzzDiskAnswers(f *testing.F) {
	f.Add(`[{"qdev":"d0","stats":{"wr_bytes":1},"backing":{"stats":{"wr_highest_offset":2},"parent":{"stats":{}}}}]`,
		`[{"qdev":"d0","inserted":{"image":{"filename":"/a","virtual-size":4,"backing-image":{"filename":"/b"}}}}]`)
	f.Add(`[{"qdev":"d0"},{"qdev":"d0","parent":{}}]`, `[{"qdev":"/machine/peripheral/d0/x"}]`)
	f.Add(`[{"qdev":"d0","backing":`+strings.Repeat(`{"backing":`, 500)+`{}`+strings.Repeat(`}`, 501)+`]`,
		`[{"qdev":"d0","inserted":{"image":{"backing-image":{"filename":"`+strings.Repeat("x", 5000)+`"}}}}]`)
	def := &domain.Definition{Devices: device.Set{Disks: []*device.Disk{{Info: device.Info{Alias: "d0"}, Target: "vda"}, {Target: "vdb"}}}}
	f.Fuzz(func(t *testing.T, counters, blocks string) {
		var c []statistics.BlockStats
		var b []statistics.QEMUBlock
		if json.Unmarshal([]byte(counters), &c) != nil || json.Unmarshal([]byte(blocks), &b) != nil {
			return
		}
		disks := statistics.DisksOf(def, c, b)
		for range 2 { // and a sample of the counters only
			if len(disks) != 2 || disks[0].Target != "vda" || len(disks[0].Backing) > image.MaxDepth || len(disks[1].Backing) > 0 {
				t.Fatalf("disks %+v", disks)
			}
			for _, l := range disks[0].Backing {
				if l.Path != "" { // no definition says it
					t.Fatalf("a path of %d bytes", len(l.Path))
				}
			}
			statistics.CountDisk(&disks[0], c)
		}
	})
}
