package libvirt

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/guest"
	"github.com/lodge-kvm/lodge/xdr"
)

func valuesOf(params []xdr.TypedParam) map[string]string {
	found := map[string]string{}
	for _, p := range params {
		found[p.Field] = p.Value.String()
	}
	return found
}

func TestFiguresOfOneDomain(t *testing.T) {
	def := &domain.Definition{Memory: 64 << 20, CurrentMemory: 32 << 20, VCPUs: domain.VCPUs{Max: 4, Current: 2}}
	p := &statsParams{paramList{most: 100}}
	v := &guest.View{State: domain.Paused, Reason: domain.ReasonUser, Active: def}
	st := &guest.Stats{
		At: time.Now(), CPU: 5, User: 3, System: 2, Resident: 4096,
		Balloon:   guest.Balloon{Guest: map[string]uint64{"stat-free-memory": 2048, "stat-major-faults": 7}, Updated: time.Unix(99, 0)},
		VCPUs:     []guest.VCPUStats{{Index: 1, Time: 11, Waiting: 12}},
		IOThreads: []guest.IOThreadStats{{ID: 3, PollMax: 32768, PollGrow: 1, PollShrink: 2}},
	}
	p.state(v, st)
	p.cpu(v, st)
	p.balloon(v, st)
	p.vcpus(v, st)
	p.iothreads(v, st)
	got := valuesOf(p.list)
	for name, want := range map[string]string{
		"state.state": "3", "state.reason": "1", "cpu.time": "5", "cpu.user": "3", "cpu.system": "2",
		"balloon.current": "32768", "balloon.maximum": "65536", "balloon.unused": "2", "balloon.major_fault": "7",
		"balloon.last-update": "99", "balloon.rss": "4", "vcpu.current": "2", "vcpu.maximum": "4",
		"vcpu.1.state": "1", "vcpu.1.time": "11", "vcpu.1.wait": "12", "vcpu.1.delay": "12",
		"iothread.count": "1", "iothread.3.poll-max-ns": "32768", "iothread.3.poll-grow": "1", "iothread.3.poll-shrink": "2",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %s", name, got[name], want)
		}
	}
}

func TestListsOfFiguresAreBounded(t *testing.T) {
	p := &paramList{most: 2}
	for range 5 {
		p.number("n", 1)
	}
	if len(p.list) != 2 {
		t.Errorf("%d figures in a list of at most 2", len(p.list))
	}
}

// TestStatisticsDoNotWaitForAStuckGuest: one of two guests stops to answer. The
// figures of both come soon, and those of the stuck one say how old they are.
func TestStatisticsDoNotWaitForAStuckGuest(t *testing.T) {
	h := withGuests(t)
	const otherUUID = "11111111-2222-3333-4444-666666666666"
	w := h.open("")
	for name, uuid := range map[string]string{"stuck": webUUID, "healthy": otherUUID} {
		w.must(xdr.ProcDomainCreateXML, &xdr.DomainCreateXMLArgs{XML: strings.Replace(aGuest(name), webUUID, uuid, 1)}, new(xdr.DomainCreateXMLRet))
	}
	figures := func(flags uint32) (stuck, healthy map[string]string, took time.Duration) {
		t.Helper()
		began := time.Now()
		ret := new(xdr.ConnectGetAllDomainStatsRet)
		w.must(xdr.ProcConnectGetAllDomainStats, &xdr.ConnectGetAllDomainStatsArgs{Flags: flags}, ret)
		took = time.Since(began)
		for _, r := range ret.Stats {
			if r.Domain.Name == "stuck" {
				stuck = valuesOf(r.Params)
			} else {
				healthy = valuesOf(r.Params)
			}
		}
		return stuck, healthy, took
	}
	stuck, healthy, _ := figures(0)
	if stuck["cpu.time"] == "" || healthy["cpu.time"] == "" || stuck["lodge.age-ms"] != "" {
		t.Fatalf("figures of healthy guests: %v, %v", stuck, healthy)
	}
	if err := syscall.Kill(processOf(t, webUUID), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for asked := time.Now(); stuck["lodge.age-ms"] == ""; stuck, _, _ = figures(statsNoWait) { // young figures are as good as new
		if time.Since(asked) > patience {
			t.Fatal("the figures of a stuck guest never grow old")
		}
	}
	for _, flags := range []uint32{0, statsNoWait} {
		stuck, healthy, took := figures(flags)
		if took > statsPatience+time.Second {
			t.Errorf("flags %x: statistics took %v", flags, took)
		}
		if stuck["cpu.time"] == "" || stuck["lodge.age-ms"] == "" || stuck["state.state"] != "1" {
			t.Errorf("flags %x: figures of the stuck guest: %v", flags, stuck)
		}
		if healthy["cpu.time"] == "" || healthy["lodge.age-ms"] != "" {
			t.Errorf("flags %x: figures of the healthy guest: %v", flags, healthy)
		}
	}
}

// processOf finds the QEMU of a guest by the directory that it runs in.
func processOf(t *testing.T, uuid string) int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		to, err := os.Readlink(dir)
		if err != nil || filepath.Base(to) != uuid || !strings.HasPrefix(to, os.TempDir()) {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(dir, "/")[2])
		if err == nil {
			return pid
		}
	}
	t.Fatalf("no process of guest %s", uuid)
	return 0
}
