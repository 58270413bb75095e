package node_test

import (
	"context"
	"maps"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/node"
)

// daemon answers as libvirt's own does: counts first, and then that many.
type daemon struct {
	capabilities, sysinfo string
}

func (d daemon) Call(_ context.Context, proc int32, args, ret xdr.Message) error {
	switch proc {
	case xdr.ProcNodeGetInfo:
		*ret.(*xdr.NodeGetInfoRet) = xdr.NodeGetInfoRet{Memory: 4 << 20, CPUs: 12}
	case xdr.ProcConnectGetCapabilities:
		ret.(*xdr.ConnectGetCapabilitiesRet).Capabilities = d.capabilities
	case xdr.ProcConnectGetSysinfo:
		if d.sysinfo == "" {
			return &remote.Error{Code: 3, Message: "none"}
		}
		ret.(*xdr.ConnectGetSysinfoRet).Sysinfo = d.sysinfo
	case xdr.ProcNodeGetMemoryStats:
		stats := []xdr.NodeMemoryStat{{Field: "total", Value: 100}, {Field: "free", Value: 10}, {Field: "buffers", Value: 1}, {Field: "cached", Value: 20}}
		*ret.(*xdr.NodeGetMemoryStatsRet) = xdr.NodeGetMemoryStatsRet{Params: stats[:args.(*xdr.NodeGetMemoryStatsArgs).NParams], NParams: int32(len(stats))}
	case xdr.ProcNodeGetCPUStats:
		stats := []xdr.NodeCPUStat{{Field: "kernel", Value: 1e9}, {Field: "user", Value: 2e9}, {Field: "idle", Value: 3e9}, {Field: "utilization", Value: 50}}
		*ret.(*xdr.NodeGetCPUStatsRet) = xdr.NodeGetCPUStatsRet{Params: stats[:args.(*xdr.NodeGetCPUStatsArgs).NParams], NParams: int32(len(stats))}
	case xdr.ProcConnectGetAllDomainStats:
		ret.(*xdr.ConnectGetAllDomainStatsRet).Stats = []xdr.DomainStatsRecord{
			{Params: []xdr.TypedParam{{Field: "cpu.time", Value: xdr.Uint64(5e8)}, {Field: "block.count", Value: xdr.Uint(2)}, {Field: "block.0.rd.bytes", Value: xdr.Uint64(7)}, {Field: "block.1.rd.bytes", Value: xdr.Uint64(8)}, {Field: "block.1.rd.reqs", Value: xdr.Uint64(9)}}},
			{Params: []xdr.TypedParam{{Field: "cpu.time", Value: xdr.Uint64(1e9)}, {Field: "net.0.tx.bytes", Value: xdr.Uint64(3)}, {Field: "net.0.name", Value: xdr.String("x")}}},
		}
	}
	return nil
}

// Promise: L71
func TestFactsOfAnotherHost(t *testing.T) {
	const named = `<sysinfo type='smbios'><bios><entry name='version'>1</entry></bios><processor><entry name='family'>Xeon</entry><entry name='version'>A  Processor 3000 </entry></processor></sysinfo>`
	for _, c := range []struct {
		daemon
		want machine.Host
		tsc  int
	}{
		{
			daemon{"<capabilities><host><cpu><arch>x86_64</arch><model>EPYC</model><vendor>AMD</vendor><counter name='tsc' frequency='2500000000' scaling='no'/><feature name='hypervisor'/></cpu></host></capabilities>", named},
			machine.Host{Processor: "A Processor 3000", Processors: 12, Memory: 4 << 30, Virtual: true},
			2500000,
		},
		{
			daemon{"<capabilities><host><cpu><vendor>Intel</vendor><signature family='6' model='85' stepping='7'/></cpu></host></capabilities>", ""},
			machine.Host{Processor: "Intel family 6 model 85 stepping 7", Processors: 12, Memory: 4 << 30},
			0,
		},
		{daemon{"<capabilities><host><cpu><arch>x86_64</arch></cpu></host></capabilities>", ""}, machine.Host{Processor: "x86_64", Processors: 12, Memory: 4 << 30}, 0},
	} {
		h, err := node.Host(t.Context(), c.daemon)
		if err != nil || h != c.want || node.TSC(c.capabilities) != c.tsc {
			t.Errorf("got %+v with %d kHz, %v; want %+v", h, node.TSC(c.capabilities), err, c.want)
		}
	}
	if _, err := node.Host(t.Context(), daemon{"<capabilities>", ""}); err == nil {
		t.Error("half a document was read")
	}
}

// Promise: L74
func TestWhatAnotherHostHasCounted(t *testing.T) {
	got, err := node.Counters(t.Context(), daemon{})
	want := map[string]float64{
		"memory_total_bytes": 100 << 10, "memory_available_bytes": 31 << 10, "cpu_system_s": 1, "cpu_user_s": 2, "cpu_idle_s": 3,
		"guests_cpu_s": 1.5, "guests_disk_read_bytes": 15, "guests_net_out_bytes": 3,
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}
