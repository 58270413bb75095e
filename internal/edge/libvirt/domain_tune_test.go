package libvirt

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/domaincalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// param makes a typed parameter from a Go value.
func param(name string, value any) xdr.TypedParam {
	switch v := value.(type) {
	case int:
		return xdr.TypedParam{Field: name, Value: xdr.Uint64(uint64(v))}
	case string:
		return xdr.TypedParam{Field: name, Value: xdr.String(v)}
	}
	return xdr.TypedParam{Field: name, Value: value.(xdr.TypedValue)}
}

func TestIOTune_Rates(t *testing.T) {
	bound := &device.IOTune{TotalBytes: 1000, TotalBytesMax: 2000, TotalBytesMaxLen: 3, ReadIOPS: 10, WriteIOPS: 20, Group: "g"}
	for _, c := range []struct {
		name   string
		old    *device.IOTune
		params []xdr.TypedParam
		want   *device.IOTune
		fails  string
	}{
		{
			"one of three takes the other two away", bound,
			[]xdr.TypedParam{param("read_iops_sec", 5)},
			&device.IOTune{TotalBytes: 1000, TotalBytesMax: 2000, TotalBytesMaxLen: 3, ReadIOPS: 5, Group: "g"}, "",
		},
		{
			"what is not named stays", bound,
			[]xdr.TypedParam{param("size_iops_sec", 4096)},
			&device.IOTune{TotalBytes: 1000, TotalBytesMax: 2000, TotalBytesMaxLen: 3, ReadIOPS: 10, WriteIOPS: 20, SizeIOPS: 4096, Group: "g"}, "",
		},
		{
			"bursts go with their rate", bound,
			[]xdr.TypedParam{param("total_bytes_sec", 0)},
			&device.IOTune{ReadIOPS: 10, WriteIOPS: 20, Group: "g"}, "",
		},
		{"nothing is left", &device.IOTune{TotalBytes: 1}, []xdr.TypedParam{param("total_bytes_sec", 0)}, nil, ""},
		{"signed numbers are taken", nil, []xdr.TypedParam{param("total_bytes_sec", xdr.Int64(7))}, &device.IOTune{TotalBytes: 7}, ""},
		{
			"a group", bound,
			[]xdr.TypedParam{param("group_name", "h"), param("total_iops_sec", 1)},
			&device.IOTune{TotalBytes: 1000, TotalBytesMax: 2000, TotalBytesMaxLen: 3, TotalIOPS: 1, Group: "h"}, "",
		},
		{"total beside read", nil, []xdr.TypedParam{param("total_bytes_sec", 1), param("read_bytes_sec", 1)}, nil, "cannot be set at the same time"},
		{"a burst without a rate", nil, []xdr.TypedParam{param("total_bytes_sec_max", 1)}, nil, "cannot be set if 'total_bytes_sec' is not set"},
		{"a burst below the rate", nil, []xdr.TypedParam{param("read_iops_sec", 9), param("read_iops_sec_max", 8)}, nil, "cannot be smaller"},
		{"a length without a burst", nil, []xdr.TypedParam{param("read_iops_sec", 9), param("read_iops_sec_max_length", 8)}, nil, "has to be set with its length"},
		{"too much", nil, []xdr.TypedParam{param("read_iops_sec", domaincalls.MaxIOTune+1)}, nil, "no more than"},
		{"a negative rate", nil, []xdr.TypedParam{param("read_iops_sec", xdr.Int64(-1))}, nil, "cannot set read_iops_sec"},
		{"an unknown name", nil, []xdr.TypedParam{param("wishes", 1)}, nil, "'wishes' not supported"},
		{"a number for a name", nil, []xdr.TypedParam{param("group_name", 1)}, nil, "is a string"},
	} {
		before := device.IOTune{}
		if c.old != nil {
			before = *c.old
		}
		got, err := domaincalls.UpdateIOTune(c.old, c.params)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v, want an error saying %q", c.name, err, c.fails)
			}
			continue
		}
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, diff)
		}
		if c.old != nil && *c.old != before {
			t.Errorf("%s: the earlier value is changed", c.name)
		}
	}
}

func TestInterfaceTune_Rates(t *testing.T) {
	in, out, err := domaincalls.InterfaceRates([]xdr.TypedParam{param("inbound.average", xdr.Uint(100)), param("inbound.burst", 30)})
	if want := (device.Rate{Average: 100, Burst: 30}); err != nil || out != nil || *in != want {
		t.Errorf("got %+v, %+v, %v; want inbound %+v alone", in, out, err, want)
	}
	in, out, err = domaincalls.InterfaceRates([]xdr.TypedParam{param("outbound.average", 0)})
	if err != nil || in != nil || out == nil || domaincalls.NilIfUnlimited(*out) != nil {
		t.Errorf("an average of 0 does not take a bound away: %+v, %+v, %v", in, out, err)
	}
	for _, p := range []xdr.TypedParam{param("outbound.floor", 1), param("inbound.average", "fast"), param("inbound.peak", xdr.Int(-1))} {
		if _, _, err := domaincalls.InterfaceRates([]xdr.TypedParam{p}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s = %s: %v", p.Field, p.Value, err)
		}
	}
}

func TestTunables_RoundTrip(t *testing.T) {
	for _, c := range []struct {
		table []domaincalls.Tunable
		name  string
		value xdr.TypedValue
		want  string // as read from a definition that does not run
		live  string // as read from one that runs and has not set it
	}{
		{domaincalls.SchedulerTunables, "cpu_shares", xdr.Uint(2048), "2048", "1024"},
		{domaincalls.SchedulerTunables, "vcpu_period", xdr.Uint64(50000), "50000", "100000"},
		{domaincalls.SchedulerTunables, "vcpu_quota", xdr.Int64(-5), "-1", "-1"},
		{domaincalls.SchedulerTunables, "emulator_quota", xdr.Int64(25000), "25000", "-1"},
		{domaincalls.SchedulerTunables, "iothread_period", xdr.Int64(1000), "1000", "100000"},
		{domaincalls.MemoryTunables, "hard_limit", xdr.Uint64(4096), "4096", "9007199254740991"},
		{domaincalls.MemoryTunables, "soft_limit", xdr.Uint64(domaincalls.MemoryUnlimited), "9007199254740991", "9007199254740991"},
		{domaincalls.BlkioTunables, "weight", xdr.Uint(300), "300", "500"},
		{domaincalls.NumaTunables, "numa_mode", xdr.Int(2), "2", "0"},
		{domaincalls.NumaTunables, "numa_nodeset", xdr.String("0-1"), `"0-1"`, `""`},
	} {
		tune := domaincalls.FindTunable(c.table, c.name)
		d := &domain.Definition{}
		shares, weight, memory := uint64(1024), uint64(500), uint64(kernel.Unlimited)
		live := &kernel.Limits{CPUShares: &shares, BlockWeight: &weight, MemoryHard: &memory, MemorySoft: &memory}
		if got := tune.Read(d, live).String(); got != c.live {
			t.Errorf("%s of a running domain is %s, want %s", c.name, got, c.live)
		}
		if err := tune.Write(d, c.value); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := tune.Read(d, nil).String(); got != c.want {
			t.Errorf("%s was set to %s and is %s, want %s", c.name, c.value, got, c.want)
		}
	}
	for _, c := range []struct {
		table []domaincalls.Tunable
		name  string
		value xdr.TypedValue
	}{
		{domaincalls.SchedulerTunables, "vcpu_period", xdr.Uint64(999)},
		{domaincalls.SchedulerTunables, "vcpu_quota", xdr.Int64(999)},
		{domaincalls.SchedulerTunables, "cpu_shares", xdr.Int(-1)},
		{domaincalls.SchedulerTunables, "global_quota", xdr.Uint64(1 << 63)},
		{domaincalls.BlkioTunables, "weight", xdr.String("heavy")},
		{domaincalls.NumaTunables, "numa_mode", xdr.Int(9)},
		{domaincalls.NumaTunables, "numa_nodeset", xdr.String("")},
		{domaincalls.NumaTunables, "numa_nodeset", xdr.String("many")},
		{domaincalls.NumaTunables, "numa_nodeset", xdr.Int(1)},
	} {
		if err := domaincalls.FindTunable(c.table, c.name).Write(&domain.Definition{}, c.value); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s takes %s: %v", c.name, c.value, err)
		}
	}
}

func TestCPUStats_PerCPU(t *testing.T) {
	used := kernel.GroupStats{PerCPU: []time.Duration{5, 6, 7}}
	for _, c := range []struct {
		start       int32
		count, room uint32
		params      int
		per         int32
		fails       bool
	}{
		{0, 0, 0, 0, 3, false}, // how many processors
		{0, 1, 0, 0, 1, false}, // how many figures each
		{0, 3, 1, 3, 1, false},
		{1, 128, 1, 2, 1, false},
		{3, 1, 1, 0, 0, true},
		{-2, 1, 1, 0, 0, true},
	} {
		ret, err := domaincalls.CPUTimes(used, &xdr.DomainGetCPUStatsArgs{StartCPU: c.start, NCPUs: c.count, NParams: c.room})
		if (err != nil) != c.fails {
			t.Fatalf("from %d: %v", c.start, err)
		}
		if err == nil && (len(ret.Params) != c.params || ret.NParams != c.per) {
			t.Errorf("from %d for %d: %d parameters, %d each; want %d, %d each", c.start, c.count, len(ret.Params), ret.NParams, c.params, c.per)
		}
	}
	if _, err := domaincalls.CPUTimes(kernel.GroupStats{}, &xdr.DomainGetCPUStatsArgs{NCPUs: 1}); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a host that counts nothing for single processors: %v", err)
	}
}

// aTile is a guest with devices to tune, and nothing to boot.
const aTile = `<domain type='qemu'><name>tile</name><memory>65536</memory><vcpu current='1'>2</vcpu><iothreads>1</iothreads>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>
<devices><serial type='pty'/><memballoon model='virtio'><stats period='1'/></memballoon>
<controller type='pci' index='8' model='pcie-root-port'/>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='DIR/top.qcow2'/><target dev='vda' bus='virtio'/></disk>
<disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk></devices></domain>`

func TestVirsh_TuneDomain(t *testing.T) {
	s := &shell{withGuests(t), map[string]string{"DIR": t.TempDir()}}
	dir := s.words["DIR"]
	for _, image := range []string{"create -q -f raw DIR/base.raw 8M", "create -q -f qcow2 -b DIR/base.raw -F raw DIR/top.qcow2", "create -q -f raw DIR/more.raw 4M", "create -q -f raw DIR/last.raw 4M", "create -q -f raw DIR/slow.raw 4M"} {
		if out, err := s.run("qemu-img", s.fill(image)...); err != nil {
			t.Fatalf("qemu-img: %s", out)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "tile.xml"), []byte(strings.ReplaceAll(aTile, "DIR", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.does("define DIR/tile.xml")
	s.does("domstats tile", "state.state=5", "vcpu.maximum=2", "block.count=2", "block.0.capacity=8388608")
	s.does("schedinfo tile", "posix", "cpu_shares : 0")
	s.fails("schedinfo tile --live", "domain is not running")
	s.does("start tile --paused")
	s.does("domstats tile --backing --enforce", "block.count=3", "block.0.backingIndex=[0-9]+", "block.1.path=DIR/base.raw", "block.1.capacity=8388608",
		"iothread.count=1", "iothread.1.poll-max-ns=", "cpu.time=", "vcpu.0.delay=")
	s.fails("domstats tile --perf --enforce", "not supported")
	s.does("cpu-stats tile --total", "cpu_time")
	s.fails("domifstat tile vnet77", "not a known interface")
	s.does("schedinfo tile", "vcpu_period : 100000", "vcpu_quota : -1", "global_quota : -1")
	s.does("iothreadinfo tile", "1 [0-9]")
	s.does("iothreadpin tile 1 0 --live --config")
	s.does("iothreadinfo tile", "1 0")
	s.does("iothreadinfo tile --config", "1 0")
	s.fails("iothreadpin tile 2 0", "no iothread 2")
	s.does("numatune tile", "numa_mode : strict")
	s.fails("numatune tile --mode interleave --live", "NUMA mode of a running domain")
	s.fails("vcpupin tile 7 0 --config", "out of range")
	s.does("blkdeviotune tile vda --total-bytes-sec 1000000 --total-bytes-sec-max 2000000 --live --config")
	s.does("blkdeviotune tile vda", "total_bytes_sec: 1000000", "total_bytes_sec_max: 2000000")
	s.does("dumpxml tile --inactive", "<total_bytes_sec>1000000</total_bytes_sec>")
	s.does("blkdeviotune tile vda --total-bytes-sec 0 --live --config")
	s.does("dumpxml tile", "<target dev='vda'")
	s.fails("blkdeviotune tile vdz", "not found in the domain")
	s.does("blockresize tile vda 16M")
	s.does("domblkinfo tile vda", "Capacity: 16777216")
	s.fails("blockresize tile sda 16M", "read-only")
	s.fails("setvcpus tile 3", "more than the domain's maximum")
	s.does("attach-disk tile DIR/more.raw vdb --live")
	s.does("domblklist tile", "vdb DIR/more.raw")
	s.fails("attach-disk tile DIR/more.raw vdb --live", "already exists")
	if err := os.WriteFile(filepath.Join(dir, "nic.xml"), []byte("<interface type='user'><model type='virtio'/></interface>"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.does("attach-device tile DIR/nic.xml --live --config")
	live, config := macs(s.does("domiflist tile")), macs(s.does("domiflist tile --inactive"))
	if len(live) != 1 || len(config) != 1 || live[0] != config[0] {
		t.Errorf("the new interface has the MAC addresses %v in the running guest and %v in its config", live, config)
	}
	s.does("change-media tile sda DIR/more.raw --insert --config")
	s.does("attach-disk tile DIR/last.raw vdc --live --config")
	s.does("detach-disk tile vdc --config")
	s.does("domblklist tile", "vdc DIR/last.raw")
	s.fails("detach-disk tile vdc --config", "No disk found")
	throttled := `<disk type="file" device="disk"><driver name="qemu" type="raw"/><source file="DIR/slow.raw"/><target dev="sdb" bus="usb"/><iotune><read_iops_sec>7</read_iops_sec></iotune></disk>`
	if err := os.WriteFile(filepath.Join(dir, "slow.xml"), []byte(strings.ReplaceAll(throttled, "DIR", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.does("attach-device tile DIR/slow.xml --live")
	s.does(`qemu-monitor-command tile {"execute":"query-block"}`, `"iops_rd":7`)
	s.does("domblklist tile --inactive", "sda DIR/more.raw")
	s.does("destroy tile")
}

func macs(table string) (found []string) {
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) == 5 && strings.Count(fields[4], ":") == 5 {
			found = append(found, fields[4])
		}
	}
	return found
}

// TestVirsh_CgroupLimits compares the limits of a running guest with those of its cgroups, on
// hosts that have them.
func TestVirsh_CgroupLimits(t *testing.T) {
	h := withGuests(t)
	s := &shell{h, map[string]string{"DIR": t.TempDir()}}
	doc := document(t, aGuest("tile"))
	s.does("create " + doc + " --paused")
	group := h.server.Handlers.Guests.Cgroups.Guest(webUUID)
	for _, c := range []struct {
		controller kernel.Controller
		command    string
		shown      string
		threads    string // empty: the guest's own group
		file, want string // in version 1
	}{
		{kernel.CPUController, "schedinfo tile --set cpu_shares=512", "cpu_shares : 512", "", "cpu.shares", "512"},
		{kernel.CPUController, "schedinfo tile --set global_quota=50000", "global_quota : 50000", "", "cpu.cfs_quota_us", "50000"},
		{kernel.CPUController, "schedinfo tile --set vcpu_quota=40000", "vcpu_quota : 40000", "vcpu0", "cpu.cfs_quota_us", "40000"},
		{kernel.CPUController, "schedinfo tile --set vcpu_quota=-1", "vcpu_quota : -1", "vcpu0", "cpu.cfs_quota_us", "-1"},
		{kernel.CPUController, "schedinfo tile --set emulator_quota=30000", "emulator_quota : 30000", "emulator", "cpu.cfs_quota_us", "30000"},
		{kernel.MemoryController, "memtune tile --hard-limit 900000", "", "", "memory.limit_in_bytes", "921600000"},
		{kernel.MemoryController, "memtune tile --hard-limit -1", "", "", "memory.limit_in_bytes", "9223372036854771712"},
	} {
		of := group
		if c.threads != "" {
			of = group.Threads(c.threads)
		}
		dir := of.Path(c.controller)
		if dir == "" {
			t.Logf("skipped: this host has no controller %s", c.controller)
			continue
		}
		s.does(c.command, c.shown)
		text, err := os.ReadFile(filepath.Join("/", dir, c.file))
		if errors.Is(err, os.ErrNotExist) {
			continue // version 2 has other files; its own are tested in package kernel
		}
		if got := strings.TrimSpace(string(text)); got != c.want || err != nil {
			t.Errorf("virsh %s: the kernel says %q (%v), want %q", c.command, got, err, c.want)
		}
		if c.threads != "" {
			tasks, err := os.ReadFile(filepath.Join("/", dir, "tasks"))
			if len(strings.Fields(string(tasks))) == 0 {
				t.Errorf("no thread is in group %s: %v", c.threads, err)
			}
		}
	}
	s.fails("memtune tile --swap-hard-limit 100", "lower than or equal")
}

// A domain cannot get more memory than its XML can hold.
func TestSetMemory_OverMaximum(t *testing.T) {
	h := &rpc.Handlers{Backends: rpc.Backends{Guests: &guest.Registry{}}}
	for kib, kind := range map[uint64]fault.Kind{0: fault.Invalid, domaincalls.MemoryUnlimited: fault.NotFound, domaincalls.MemoryUnlimited + 1: fault.Invalid, 1<<54 - 1: fault.Invalid} {
		for what, call := range map[string]func() error{
			"memory": func() error {
				_, err := domaincalls.DomainSetMemory(t.Context(), h, &rpc.Request{}, &xdr.DomainSetMemoryArgs{Memory: kib})
				return err
			},
			"a maximum": func() error {
				_, err := domaincalls.DomainSetMaxMemory(t.Context(), h, &rpc.Request{}, &xdr.DomainSetMaxMemoryArgs{Memory: kib})
				return err
			},
		} {
			if err := call(); !fault.Is(err, kind) {
				t.Errorf("%s of %d KiB: %v", what, kib, err)
			}
		}
	}
}
