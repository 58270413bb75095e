package libvirt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/domaincalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

func valuesOf(params []xdr.TypedParam) map[string]string {
	found := map[string]string{}
	for _, p := range params {
		found[p.Field] = p.Value.String()
	}
	return found
}

func TestStatsParams_OneDomain(t *testing.T) {
	def := &domain.Definition{Memory: 64 << 20, CurrentMemory: 32 << 20, VCPUs: domain.VCPUs{Max: 4, Current: 2}}
	v := &guest.View{State: domain.Paused, Reason: domain.ReasonUser, Active: def}
	st := &machine.Stats{
		At: time.Now(), CPU: 5, User: 3, System: 2, Resident: 4096,
		Balloon:   machine.Balloon{Updated: time.Unix(99, 0)},
		VCPUs:     []machine.VCPUStats{{Index: 1, Time: 11, Waiting: 12}},
		IOThreads: []machine.IOThreadStats{{ID: 3, PollMax: 32768, PollGrow: 1, PollShrink: 2}},
	}
	statistics.SetFigure(&st.Balloon, machine.FreeMemory, 2048)
	statistics.SetFigure(&st.Balloon, machine.MajorFaults, 7)
	got := valuesOf((&domaincalls.StatsRequest{Groups: domaincalls.StatsGroups}).Params(new(domaincalls.StatsParams), v, st, nil))
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

func TestStatsParams_Bounded(t *testing.T) {
	p := &rpc.ParamList{Max: 2}
	for range 5 {
		p.AddUint64("n", 1)
	}
	if len(p.List) != 2 {
		t.Errorf("%d figures in a list of at most 2", len(p.List))
	}
}

// Statistics of numbered objects have the right names, precomputed or not. A disk is found after another one
// before it was unplugged.
func TestStatsParams_NumberedNames(t *testing.T) {
	def := &domain.Definition{}
	st := &machine.Stats{At: time.Now().Add(-time.Minute), Stale: errors.New("it sleeps")}
	for i := range domaincalls.CachedStatNames + 2 {
		target := "vd" + strconv.Itoa(i)
		def.Devices.Disks = append(def.Devices.Disks, &device.Disk{Target: target, Source: &device.DiskSource{File: "/" + target}})
		st.Disks = append(st.Disks, machine.DiskStats{Target: target, ReadOps: uint64(i), Capacity: 7})
	}
	def.Devices.Disks = def.Devices.Disks[1:]
	st.Disks[5].Backing = []machine.LayerStats{{Path: "/base", Capacity: 9}}
	def.Devices.Disks[0].Source = nil // a drive without a medium
	def.Devices.NICs = []*device.NIC{{Type: "user"}, {Type: "network", Target: "vnet3"}}
	st.NICs = []machine.NICStats{{}, {IfName: "vnet3", Counters: hostnet.Counters{RxBytes: 4, TxDropped: 5}}}
	v := &guest.View{State: domain.Running, Active: def}
	got := valuesOf((&domaincalls.StatsRequest{Groups: domaincalls.StatsBlock | domaincalls.StatsInterface, Backing: true}).Params(new(domaincalls.StatsParams), v, st, nil))
	for name, want := range map[string]string{
		"block.count": "34", "block.0.name": `"vd1"`, "block.0.path": "", "block.0.rd.reqs": "1", "block.0.capacity": "",
		"block.4.name": `"vd5"`, "block.5.name": `"vd5"`, "block.5.path": `"/base"`, "block.5.capacity": "9", "block.5.rd.reqs": "",
		"block.33.name": `"vd33"`, "block.33.rd.reqs": "33", "block.34.name": "", "block.0.allocation": "", "block.1.allocation": "0",
		"net.count": "2", "net.0.name": "", "net.1.name": `"vnet3"`, "net.1.rx.bytes": "4", "net.1.tx.drop": "5",
		"cpu.time": "",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %s", name, got[name], want)
		}
	}
}

// TestAllStats_LibvirtNames: clients parse the names, and some fail if a name does not begin with
// the group that they asked for.
func TestAllStats_LibvirtNames(t *testing.T) {
	def := &domain.Definition{Memory: 64 << 20, CurrentMemory: 32 << 20, VCPUs: domain.VCPUs{Max: 1, Current: 1}}
	def.Devices.Disks = []*device.Disk{{Target: "vda", Source: &device.DiskSource{File: "/vda"}}}
	def.Devices.NICs = []*device.NIC{{Type: "network", Target: "vnet3"}}
	v := &guest.View{State: domain.Running, Active: def}
	st := &machine.Stats{
		At: time.Now().Add(-time.Minute), Stale: errors.New("it sleeps"), StaleSince: time.Now(),
		VCPUs: []machine.VCPUStats{{}}, NICs: []machine.NICStats{{IfName: "vnet3"}}, IOThreads: []machine.IOThreadStats{{ID: 1}},
		Disks: []machine.DiskStats{{Target: "vda", Index: 1, Capacity: 1, Physical: 1}},
	}
	for group, prefix := range map[uint32]string{
		domaincalls.StatsState: "state.", domaincalls.StatsCPU: "cpu.", domaincalls.StatsBalloon: "balloon.", domaincalls.StatsVCPU: "vcpu.",
		domaincalls.StatsInterface: "net.", domaincalls.StatsBlock: "block.", domaincalls.StatsIOThread: "iothread.",
	} {
		names := valuesOf((&domaincalls.StatsRequest{Groups: group}).Params(new(domaincalls.StatsParams), v, st, nil))
		if len(names) == 0 {
			t.Errorf("group %s has no figures", prefix)
		}
		for name := range names {
			if !strings.HasPrefix(name, prefix) {
				t.Errorf("group %s has a figure %s", prefix, name)
			}
		}
	}
}

// TestAllStats_StuckGuest stops the QEMU of one of two guests. The statistics of both come at
// once. The sample of the stuck one is old and has the reason, and that of the other stays new.
func TestAllStats_StuckGuest(t *testing.T) {
	h := withGuests(t)
	const otherUUID = "11111111-2222-3333-4444-666666666666"
	w := h.open("")
	for name, uuid := range map[string]string{"stuck": webUUID, "healthy": otherUUID} {
		w.must(xdr.ProcDomainCreateXML, &xdr.DomainCreateXMLArgs{XML: strings.Replace(aGuest(name), webUUID, uuid, 1)}, new(xdr.DomainCreateXMLRet))
	}
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	figures := func(args xdr.ConnectGetAllDomainStatsArgs) (stuck, healthy map[string]string) {
		t.Helper()
		<-again.C
		began, ret := time.Now(), new(xdr.ConnectGetAllDomainStatsRet)
		w.must(xdr.ProcConnectGetAllDomainStats, &args, ret)
		if took := time.Since(began); took > domaincalls.FreshStatsTimeout/2 {
			t.Errorf("statistics of %d named took %v", len(args.Domains), took)
		}
		for _, r := range ret.Stats {
			if r.Domain.Name == "stuck" {
				stuck = valuesOf(r.Params)
			} else {
				healthy = valuesOf(r.Params)
			}
		}
		return stuck, healthy
	}
	sample := func(uuid string) machine.Stats {
		t.Helper()
		g, err := domaincalls.FindGuest(&h.server.Handlers, domainOf(t, uuid))
		if err != nil {
			t.Fatal(err)
		}
		if st := statistics.Sample(g); st != nil {
			return *st
		}
		return machine.Stats{}
	}
	// until asks again and again: samples are taken in the background.
	until := func(what string, there func(stuck, healthy map[string]string) bool) {
		t.Helper()
		for began := time.Now(); ; {
			stuck, healthy := figures(xdr.ConnectGetAllDomainStatsArgs{})
			if there(stuck, healthy) {
				return
			}
			if time.Since(began) > patience {
				t.Fatalf("%s: never; the stuck one's are %v, the healthy one's %v", what, stuck, healthy)
			}
		}
	}
	until("figures of both", func(stuck, healthy map[string]string) bool {
		return stuck["cpu.time"] != "" && healthy["cpu.time"] != "" && healthy["block.0.rd.reqs"] != ""
	})
	if err := syscall.Kill(processOf(t, webUUID), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stale := func(uuid string) string {
		if st := sample(uuid); st.Stale != nil {
			return st.Stale.Error()
		}
		return ""
	}
	until("a mark on the stuck one", func(map[string]string, map[string]string) bool {
		return strings.Contains(stale(webUUID), "stopped by a signal") && stale(otherUUID) == ""
	})
	age := func(uuid string) time.Duration { return time.Since(sample(uuid).At) }
	until("an old sample beside a young one", func(map[string]string, map[string]string) bool {
		return age(webUUID) > 3*time.Second && age(otherUUID) < 2500*time.Millisecond
	})
	for _, args := range []xdr.ConnectGetAllDomainStatsArgs{
		{}, {Flags: domaincalls.StatsNoWait}, {Domains: []xdr.Domain{domainOf(t, webUUID), domainOf(t, otherUUID)}},
	} {
		stuck, healthy := figures(args)
		if stuck["cpu.time"] == "" || stale(webUUID) == "" || stuck["state.state"] != "1" {
			t.Errorf("%+v: figures of the stuck guest: %v", args, stuck)
		}
		if healthy["cpu.time"] == "" || stale(otherUUID) != "" {
			t.Errorf("%+v: figures of the healthy guest: %v", args, healthy)
		}
		if len(args.Domains) > 0 && age(otherUUID) > 700*time.Millisecond {
			t.Errorf("a guest that is named has a sample of %v", age(otherUUID))
		}
	}
	w.send(xdr.ProcDomainBlockStats, &xdr.DomainBlockStatsArgs{Domain: domainOf(t, webUUID), Path: "hda"})
	if status := w.next().Status; status != xdr.StatusError {
		t.Errorf("counters of a disk of a stopped guest came as if they were new: status %v", status)
	}
	vcpus := new(xdr.DomainGetVCPUsRet) // their threads are those of the sample
	w.must(xdr.ProcDomainGetVCPUs, &xdr.DomainGetVCPUsArgs{Domain: domainOf(t, webUUID), MaxInfo: 4, MapLen: 1}, vcpus)
	if len(vcpus.Info) != 1 || vcpus.Info[0].CPUTime == 0 {
		t.Errorf("the processors of a stopped guest are %+v", vcpus.Info)
	}
	info := new(xdr.DomainGetInfoRet)
	w.must(xdr.ProcDomainGetInfo, &xdr.DomainGetInfoArgs{Domain: domainOf(t, webUUID)}, info)
	if info.CPUTime == 0 || info.State != 1 {
		t.Errorf("the information on a stopped guest is %+v", info)
	}
}

func domainOf(t *testing.T, uuid string) xdr.Domain {
	t.Helper()
	id, err := rpc.ParseUUID(uuid)
	if err != nil {
		t.Fatal(err)
	}
	return xdr.Domain{UUID: id}
}

// If the paths of definitions exceed a reply, only the records of their guests are cut.
// Promise: X4
func TestAllStats_FitReply(t *testing.T) {
	path := xdr.String("/" + strings.Repeat("x", 1<<20))
	ret := &xdr.ConnectGetAllDomainStatsRet{}
	for _, paths := range []int{1, 20, 4, 40} {
		r := xdr.DomainStatsRecord{Params: []xdr.TypedParam{{Field: "state.state", Value: xdr.Int(1)}}}
		for i := range paths {
			r.Params = append(r.Params, xdr.TypedParam{Field: "block." + strconv.Itoa(i) + ".path", Value: path})
		}
		ret.Stats = append(ret.Stats, r)
	}
	domaincalls.FitStats(ret.Stats, xdr.MaxPayload-domaincalls.StatsOverhead)
	if _, err := xdr.AppendPacket(nil, xdr.Header{}, ret, 0); err != nil {
		t.Error(err)
	}
	for i, want := range []int{2, 14, 5, 14} { // 32 MiB but the 5 of the small ones, and a little
		if n := len(ret.Stats[i].Params); n != want {
			t.Errorf("of guest %d there are %d parameters, want %d", i, n, want)
		}
	}
}

// BenchmarkStatistics makes and encodes the statistics of 256 guests, all groups.
func BenchmarkStatistics(b *testing.B) {
	for _, disks := range []int{2, 16} {
		b.Run(fmt.Sprintf("disks=%d", disks), func(b *testing.B) {
			def := &domain.Definition{Memory: 64 << 20, CurrentMemory: 32 << 20, VCPUs: domain.VCPUs{Max: 1, Current: 1}}
			st := &machine.Stats{
				At: time.Now(), CPU: 5, User: 3, System: 2, Resident: 4096,
				VCPUs: []machine.VCPUStats{{Time: 11, Waiting: 12}}, NICs: []machine.NICStats{{IfName: "vnet0"}},
			}
			for f := range domaincalls.BalloonStats {
				statistics.SetFigure(&st.Balloon, machine.BalloonFigure(f), 1)
			}
			for i := range disks {
				target, path := "vd"+string(rune('a'+i)), "/var/lib/libvirt/images/some-image-"+strconv.Itoa(i)+".qcow2"
				def.Devices.Disks = append(def.Devices.Disks, &device.Disk{Target: target, Source: &device.DiskSource{File: path}})
				st.Disks = append(st.Disks, machine.DiskStats{Target: target, Path: path, Index: uint(i + 1), Capacity: 1, Physical: 2})
			}
			v := &guest.View{Name: "some-guest", UUID: webUUID, State: domain.Running, Active: def}
			r := &domaincalls.StatsRequest{Groups: domaincalls.StatsGroups}
			b.ReportAllocs()
			for b.Loop() {
				ret, p := &xdr.ConnectGetAllDomainStatsRet{}, domaincalls.StatsBuffers.Get().(*domaincalls.StatsParams)
				for range 256 {
					d, err := domaincalls.WireDomain(v)
					if err != nil {
						b.Fatal(err)
					}
					ret.Stats = append(ret.Stats, xdr.DomainStatsRecord{Domain: d, Params: r.Params(p, v, st, nil)})
				}
				packet, err := xdr.AppendPacket(nil, xdr.Header{}, ret, 0)
				if err != nil {
					b.Fatal(err)
				}
				p.List = p.List[:0]
				domaincalls.StatsBuffers.Put(p)
				b.SetBytes(int64(len(packet)))
			}
		})
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
