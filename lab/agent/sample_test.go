package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/lab/wire"
)

func TestCountersOfARecordedGuest(t *testing.T) {
	got, err := usage("testdata")
	if err != nil {
		t.Fatal(err)
	}
	if got.Instant.Source != "tsc" || got.Instant.Up <= 0 || time.Since(got.Instant.Wall) > time.Hour {
		t.Errorf("the clocks say %+v", got.Instant)
	}
	got.Instant = wire.Instant{}
	const ms = time.Millisecond
	want := wire.Usage{
		CPUs: 3, Load: 0.25,
		CPU: wire.Times{
			User: 1500 * ms, System: 4500 * ms, Idle: 980 * time.Second, Wait: 700 * ms, IRQ: 110 * ms, Steal: 110 * ms, Guest: 20 * ms,
			Context: 987654,
		},
		Memory: wire.Memory{
			Total: 245760 << 10, Free: 100000 << 10, Available: 180000 << 10, Cached: 61000 << 10, Swap: 536 << 10, Dirty: 128 << 10,
		},
		Disks: map[string]wire.Disk{
			"vda": {Reads: 100, ReadBytes: 2048 * 512, ReadTime: 300 * ms, Writes: 50, WrittenBytes: 4096 * 512, WriteTime: 700 * ms, Busy: 900 * ms},
			"vdb": {Reads: 10, ReadBytes: 80 * 512, ReadTime: 9 * ms, Busy: 9 * ms},
		},
		Nets: map[string]wire.Net{
			"lo":   {InBytes: 100, InPackets: 2, OutBytes: 100, OutPackets: 2},
			"eth0": {InBytes: 5000000, InPackets: 4000, InErrors: 3, OutBytes: 6000000, OutPackets: 3000, OutErrors: 9},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestASampleWithoutCountersIsAnError(t *testing.T) {
	if _, err := usage(t.TempDir()); err == nil {
		t.Error("a machine without /proc gives a sample")
	}
}
