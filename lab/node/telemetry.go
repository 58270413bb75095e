package node

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// all means the whole host, and not one processor or cell of it.
const all = -1

// Memory is the host's: in all, and what can be had. libvirt does not tell the
// kernel's own estimate: what is free, and what is cached of files, is close to it.
func Memory(ctx context.Context, c Caller) (total, available uint64, err error) {
	var ret xdr.NodeGetMemoryStatsRet
	if err := c.Call(ctx, xdr.ProcNodeGetMemoryStats, &xdr.NodeGetMemoryStatsArgs{Cell: all}, &ret); err != nil {
		return 0, 0, err
	}
	// The count was told, and what there is so many of is sent.
	if err := c.Call(ctx, xdr.ProcNodeGetMemoryStats, &xdr.NodeGetMemoryStatsArgs{Cell: all, NParams: ret.NParams}, &ret); err != nil {
		return 0, 0, err
	}
	for _, p := range ret.Params {
		bytes := p.Value << 10
		switch p.Field {
		case "total":
			total = bytes
		case "free", "buffers", "cached":
			available += bytes
		}
	}
	return total, available, nil
}

// times are libvirt's names for what processors did, and the lab's.
var times = map[string]string{"user": "cpu_user_s", "kernel": "cpu_system_s", "idle": "cpu_idle_s", "iowait": "cpu_iowait_s", "intr": "cpu_intr_s"}

// sums are what statistics of single guests are added up to.
var sums = map[string]string{
	"rd.bytes": "guests_disk_read_bytes", "wr.bytes": "guests_disk_written_bytes", "rx.bytes": "guests_net_in_bytes", "tx.bytes": "guests_net_out_bytes",
}

// Groups of statistics, and the flag that nobody waits for a guest that is slow.
const (
	statsCPU       = 1 << 1
	statsInterface = 1 << 4
	statsBlock     = 1 << 5
	statsNoWait    = 1 << 29
)

// Counters are what the host has counted since its boot, by names as telemetry takes
// them of a guest: processors, memory, and what its guests did.
func Counters(ctx context.Context, c Caller) (map[string]float64, error) {
	total, available, err := Memory(ctx, c)
	if err != nil {
		return nil, err
	}
	counted := map[string]float64{"memory_total_bytes": float64(total), "memory_available_bytes": float64(available)}
	var cpu xdr.NodeGetCPUStatsRet
	if err := c.Call(ctx, xdr.ProcNodeGetCPUStats, &xdr.NodeGetCPUStatsArgs{CPU: all}, &cpu); err != nil {
		return nil, err
	}
	if err := c.Call(ctx, xdr.ProcNodeGetCPUStats, &xdr.NodeGetCPUStatsArgs{CPU: all, NParams: cpu.NParams}, &cpu); err != nil {
		return nil, err
	}
	for _, p := range cpu.Params {
		if name := times[p.Field]; name != "" {
			counted[name] = float64(p.Value) / 1e9
		}
	}
	return counted, guests(ctx, c, counted)
}

// guests adds up what all guests of the host did.
func guests(ctx context.Context, c Caller, counted map[string]float64) error {
	var ret xdr.ConnectGetAllDomainStatsRet
	args := &xdr.ConnectGetAllDomainStatsArgs{Stats: statsCPU | statsInterface | statsBlock, Flags: statsNoWait}
	if err := c.Call(ctx, xdr.ProcConnectGetAllDomainStats, args, &ret); err != nil {
		return err
	}
	for _, domain := range ret.Stats {
		for _, p := range domain.Params {
			if p.Value.Kind() != xdr.KindUint64 {
				continue
			}
			value := float64(p.Value.Uint())
			if p.Field == "cpu.time" {
				counted["guests_cpu_s"] += value / 1e9
			}
			if name := sums[lastWords(p.Field)]; name != "" {
				counted[name] += value
			}
		}
	}
	return nil
}

// lastWords are the last two of a name such as block.0.rd.bytes.
func lastWords(field string) string {
	dots := 0
	for i := len(field) - 1; i >= 0; i-- {
		if field[i] == '.' {
			if dots++; dots == 2 {
				return field[i+1:]
			}
		}
	}
	return ""
}
