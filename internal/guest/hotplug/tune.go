package hotplug

import (
	"cmp"
	"context"
	"reflect"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Tune changes how a guest shares the host: the weights and limits of its control group and its threads,
// the placement of its memory, and the rates of its disks and interfaces. change is applied to a copy of
// each affected definition, more than once and in the guest's loop, so it must not block. Differences are
// then applied to the running guest.
func Tune(ctx context.Context, g *machine.Guest, sc scope.Scope, a machine.Affect, change func(*domain.Definition) error) error {
	return edit(ctx, g, sc, a, func() (*domain.Definition, error) {
		return tuned(g.Inactive, change)
	}, func(config *domain.Definition) (machine.Work, error) {
		return planTune(g, sc, change, config)
	})
}

// tuned returns a changed copy of a definition, or an error that says why the change is invalid.
func tuned(d *domain.Definition, change func(*domain.Definition) error) (*domain.Definition, error) {
	after := d.Clone()
	if err := change(after); err != nil {
		return nil, err
	}
	for i, n := range after.Devices.NICs {
		if !sameRates(d.Devices.NICs[i], n) {
			if err := network.CheckBandwidth(n); err != nil {
				return nil, err
			}
		}
	}
	return after, nil
}

func sameRates(a, b *device.NIC) bool {
	return reflect.DeepEqual(a.Inbound, b.Inbound) && reflect.DeepEqual(a.Outbound, b.Outbound)
}

// planTune plans a change of the running guest's settings. config is the changed stored definition. Nil: it
// is unchanged.
func planTune(g *machine.Guest, sc scope.Scope, change func(*domain.Definition) error, config *domain.Definition) (machine.Work, error) {
	before := g.Instance.Definition
	after, err := tuned(before, change)
	if err != nil {
		return nil, err
	}
	if err := g.ReserveQuota(sc, after); err != nil {
		return nil, err
	}
	if err := provision.CheckPins(g.Reg, before, after); err != nil {
		return nil, err
	}
	if cmp.Or(before.NUMA.Mode, "strict") != cmp.Or(after.NUMA.Mode, "strict") {
		return nil, fault.New(fault.WrongState, fault.Domain, "cannot change the NUMA mode of a running domain; change its config")
	}
	return UpdateWith(g, &UpdateOp{}, after, config)
}

// revertTuning reverts the parts of a change that were applied before another part was refused.
func revertTuning(ctx context.Context, r *machine.Instance, before, after *domain.Definition) {
	err := applyTuning(ctx, r.Reg, r, after, before)
	if err != nil && !fault.Is(err, fault.WrongState) { // WrongState: the host lacks the limited resource
		r.Log.Warn("cannot revert a part of a refused change; it stays in force until the guest ends", "error", err)
	}
}

// applyTuning applies the differences between two definitions to the running guest.
func applyTuning(ctx context.Context, r *machine.Registry, run *machine.Instance, before, after *domain.Definition) error {
	absent, err := r.Cgroups.Guest(run.UUID).Apply(changedLimits(r, provision.Limits(before), provision.Limits(after)))
	if err != nil {
		return err
	}
	if len(absent) > 0 {
		return fault.New(fault.WrongState, fault.Host, "this host cannot enforce the limit %s: it has no control group controller for it", absent[0])
	}
	s, err := run.Monitor()
	if err != nil {
		return err
	}
	absent, err = provision.LimitThreads(ctx, r, s, run, &before.Tune, &after.Tune)
	if err != nil {
		return err
	}
	if len(absent) > 0 {
		return fault.New(fault.WrongState, fault.Host, "this host cannot enforce the limit %s: it has no control group controller for it", absent[0])
	}
	for i, d := range after.Devices.Disks {
		if !reflect.DeepEqual(before.Devices.Disks[i].Tune, d.Tune) {
			if err := machine.Execute(ctx, s, qemu.Throttle(d)); err != nil {
				return err
			}
		}
	}
	for i, n := range after.Devices.NICs {
		if !sameRates(before.Devices.NICs[i], n) {
			if err := network.SetBandwidth(n, n.Target); err != nil {
				return err
			}
		}
	}
	if err := provision.Repin(ctx, r, s, run, &before.Tune, &after.Tune); err != nil {
		return err
	}
	return adjustMachine(ctx, s, before, after)
}

// adjustMachine sends QEMU the settings that it applies itself.
func adjustMachine(ctx context.Context, s *qmp.Session, before, after *domain.Definition) error {
	if b := after.Devices.Balloon; b != nil && before.Devices.Balloon != nil && b.StatsPeriod != before.Devices.Balloon.StatsPeriod {
		if err := provision.SetStatsPeriod(ctx, s, b, b.StatsPeriod); err != nil {
			return err
		}
	}
	if after.OnReboot == before.OnReboot {
		return nil
	}
	// Lodge carries out the other policies. For these, QEMU must turn a reboot into an end.
	reboot := map[string]string{"destroy": "shutdown", "restart": "reset", "preserve": "shutdown"}[cmp.Or(after.OnReboot, "restart")]
	return s.Execute(ctx, "set-action", map[string]any{"reboot": reboot}, nil)
}

const defaultSharesV1 = 1024

const defaultSharesV2 = 100

const defaultWeightV1 = 500

const defaultWeightV2 = 100

// DefaultWeights returns the default weights of a guest, for CPUs and for disk I/O.
func DefaultWeights(r *machine.Registry) (shares, weight uint64) {
	if r.Cgroups.Version() == 2 {
		return defaultSharesV2, defaultWeightV2
	}
	return defaultSharesV1, defaultWeightV1
}

// changedLimits returns the limits that differ. A removed limit becomes the kernel's default.
func changedLimits(r *machine.Registry, before, after kernel.Limits) kernel.Limits {
	shares, weight := DefaultWeights(r)
	changed := kernel.Limits{
		CPUShares:   changedLimit(before.CPUShares, after.CPUShares, shares),
		CPUPeriod:   changedLimit(before.CPUPeriod, after.CPUPeriod, provision.DefaultPeriod),
		CPUQuota:    changedLimit(before.CPUQuota, after.CPUQuota, kernel.Unlimited),
		MemoryHard:  changedLimit(before.MemoryHard, after.MemoryHard, kernel.Unlimited),
		MemorySoft:  changedLimit(before.MemorySoft, after.MemorySoft, kernel.Unlimited),
		MemorySwap:  changedLimit(before.MemorySwap, after.MemorySwap, kernel.Unlimited),
		BlockWeight: changedLimit(before.BlockWeight, after.BlockWeight, weight),
	}
	if after.Cells != nil && (before.Cells == nil || !after.Cells.Equal(*before.Cells)) {
		changed.Cells = after.Cells
	}
	return changed
}

// changedLimit returns the new value of a limit, or none's value if it was removed. Nil: it is unchanged.
func changedLimit(before, after *uint64, none uint64) *uint64 {
	switch {
	case before == nil && after == nil, before != nil && after != nil && *before == *after:
		return nil
	case after == nil:
		return &none
	}
	return after
}

// findBlock asks QEMU for the block device of a disk.
func findBlock(ctx context.Context, s *qmp.Session, d *device.Disk) (*statistics.QEMUBlock, error) {
	var blocks []statistics.QEMUBlock
	if err := s.Execute(ctx, "query-block", nil, &blocks); err != nil {
		return nil, err
	}
	for i := range blocks {
		if statistics.BelongsTo(blocks[i].QDev, d.Alias) {
			return &blocks[i], nil
		}
	}
	return nil, fault.New(fault.NotFound, fault.Device, "QEMU has no disk %s", d.Target)
}

// changedSettings lists the differences between two definitions, by libvirt's names.
func changedSettings(before, after *domain.Definition) []event.Setting {
	var changed []event.Setting
	unsigned := func(name string, was, is uint64) {
		if was != is {
			changed = append(changed, event.Setting{Name: "cputune." + name, Value: is})
		}
	}
	signed := func(name string, was, is int64) {
		if was != is {
			changed = append(changed, event.Setting{Name: "cputune." + name, Value: is})
		}
	}
	was, is := &before.Tune, &after.Tune
	unsigned("cpu_shares", was.Shares, is.Shares)
	unsigned("vcpu_period", was.Period, is.Period)
	signed("vcpu_quota", was.Quota, is.Quota)
	unsigned("emulator_period", was.EmulatorPeriod, is.EmulatorPeriod)
	signed("emulator_quota", was.EmulatorQuota, is.EmulatorQuota)
	unsigned("global_period", was.GlobalPeriod, is.GlobalPeriod)
	signed("global_quota", was.GlobalQuota, is.GlobalQuota)
	unsigned("iothread_period", was.IOThreadPeriod, is.IOThreadPeriod)
	signed("iothread_quota", was.IOThreadQuota, is.IOThreadQuota)
	for i, d := range after.Devices.Disks {
		if old := before.Devices.Disks[i].Tune; !reflect.DeepEqual(old, d.Tune) {
			changed = append(changed, diskSettings(d)...)
		}
	}
	return changed
}

func diskSettings(d *device.Disk) []event.Setting {
	t := d.Tune
	if t == nil {
		t = &device.IOTune{}
	}
	said := []event.Setting{{Name: "blkdeviotune.disk", Value: d.Alias}}
	for _, f := range t.Fields() {
		said = append(said, event.Setting{Name: "blkdeviotune." + f.Name, Value: *f.Value})
	}
	if t.Group != "" {
		said = append(said, event.Setting{Name: "blkdeviotune.group_name", Value: t.Group})
	}
	return said
}
