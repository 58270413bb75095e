package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// BoundHugePages limits the guest's huge pages to what its definition and the attached modules need.
// Otherwise QEMU could take all free huge pages of the host, which no memory limit counts.
func BoundHugePages(r *machine.Registry, uuid string, def *domain.Definition, plugged []*device.Memory) error {
	if !r.Cgroups.Has(kernel.HugePages) {
		return nil
	}
	for _, size := range r.Kernel.HugePageSizes() {
		most := map[uint64]uint64{size: mostHugePages(def, plugged, size)}
		_, err := r.Cgroups.Guest(uuid).Apply(kernel.Limits{HugePages: most})
		if err != nil && !errors.Is(err, unix.EBUSY) { // EBUSY: it still has pages of a module that is being detached
			return err
		}
	}
	return nil
}

// mostHugePages returns how many bytes the guest may take in pages of this size. All of its memory counts.
// Each part of the memory has pages of its own, so each is rounded up.
func mostHugePages(def *domain.Definition, plugged []*device.Memory, size uint64) (most uint64) {
	if len(def.QEMUArgs) > 0 { // they may configure any memory
		return kernel.Unlimited
	}
	if def.Backing.HasHugePages {
		most = def.Memory - min(def.ModuleMemory(), def.Memory) + size*uint64(1+len(def.CPU.Cells))
	}
	for _, m := range slices.Concat(def.Devices.Memories, plugged) {
		if def.Backing.HasHugePages || m.PageSize > topology.BasePage {
			most += m.Size + size
		}
	}
	return most
}

// WarnAbsent adds a message for each limit that this host cannot enforce.
func WarnAbsent(r *machine.Instance, limits []string) {
	for _, limit := range limits {
		message := fmt.Sprintf("this host cannot enforce the limit %s", limit)
		if !slices.Contains(r.Messages, message) {
			r.Messages = append(r.Messages, message)
		}
	}
}

// Limits returns the limits that the definition sets for the whole group.
func Limits(d *domain.Definition) kernel.Limits {
	var l kernel.Limits
	set := func(to **uint64, value uint64) {
		if value != 0 {
			*to = &value
		}
	}
	set(&l.CPUShares, d.Tune.Shares)
	set(&l.CPUPeriod, d.Tune.GlobalPeriod)
	if q := d.Tune.GlobalQuota; q > 0 {
		set(&l.CPUQuota, uint64(q))
	}
	set(&l.MemoryHard, d.MemTune.HardLimit)
	set(&l.MemorySoft, d.MemTune.SoftLimit)
	set(&l.MemorySwap, d.MemTune.SwapHardLimit)
	set(&l.BlockWeight, uint64(d.Blkio.Weight))
	if d.NUMA.Mode == "strict" && !d.NUMA.Nodes.IsEmpty() {
		l.Cells = &d.NUMA.Nodes
	}
	return l
}

// Launch launches a guest's QEMU, in a sandbox if it has a user of its own.
func Launch(ctx context.Context, r *machine.Registry, sc scope.Scope, def *domain.Definition, c *qemu.Command, log *os.File, dir string, u *sandbox.User, finish func(*sandbox.Spec) error) (*qemuprocess.Process, error) {
	spec := qemuprocess.Spec{Binary: def.Devices.Emulator, Args: c.Args, Files: c.Files, Log: log}
	if u == nil {
		spec.Env, spec.Dir = overrideEnvironment(os.Environ(), c.Env), dir
		return qemuprocess.Launch(ctx, spec)
	}
	place, err := sandboxSpec(ctx, r, sc, def, *u, dir)
	if err != nil {
		return nil, err
	}
	defer closeSandboxFiles(place)
	place.Program = def.Devices.Emulator
	if err := finish(place); err != nil {
		return nil, err
	}
	own := place.WritableDirs[0].Path
	spec.Builder, spec.Sandbox, spec.Dir = r.Isolation.Builder, place, own
	spec.Env = overrideEnvironment(Environment(own), c.Env)
	return qemuprocess.Launch(ctx, spec)
}

// PinThreads binds the guest's threads as its definition says: each pinned vCPU to its CPUs, and all other
// threads to those of the whole guest.
func PinThreads(ctx context.Context, r *machine.Registry, run *machine.Instance) error {
	t := run.Definition.Tune
	whole := run.Definition.VCPUs.CPUs
	if len(t.VCPUPins) == 0 && t.EmulatorPin.IsEmpty() && len(t.IOThreadPins) == 0 && whole.IsEmpty() {
		return nil
	}
	s, err := run.Monitor()
	if err != nil {
		return err
	}
	vcpus, err := QueryVCPUs(ctx, r, s, run.PID)
	if err != nil {
		return err
	}
	emulator := t.EmulatorPin
	if emulator.IsEmpty() {
		emulator = whole
	}
	if err := SetAffinity(run.PID, emulator); err != nil {
		return err
	}
	for _, v := range vcpus {
		pin, ok := t.VCPUPins[v.Index]
		if !ok {
			pin = whole
		}
		if err := SetAffinity(v.Thread, pin); err != nil {
			return err
		}
	}
	if len(t.IOThreadPins) == 0 {
		return nil
	}
	threads, err := r.QueryIOThreads(ctx, s, run.PID)
	if err != nil {
		return err
	}
	for id, tid := range threads {
		if err := SetAffinity(tid, t.IOThreadPins[id]); err != nil {
			return err
		}
	}
	return nil
}

// Repin binds the threads with a different binding in two definitions.
func Repin(ctx context.Context, r *machine.Registry, s *qmp.Session, run *machine.Instance, before, after *domain.CPUTune) error {
	moved := map[string]topology.CPUSet{}
	for index, to := range changedBindings(before.VCPUPins, after.VCPUPins) {
		moved["vcpu"+strconv.FormatUint(uint64(index), 10)] = to
	}
	for id, to := range changedBindings(before.IOThreadPins, after.IOThreadPins) {
		moved["iothread"+strconv.FormatUint(uint64(id), 10)] = to
	}
	if !after.EmulatorPin.Equal(before.EmulatorPin) {
		moved[emulatorThreads] = after.EmulatorPin
	}
	if len(moved) == 0 {
		return nil
	}
	threads, err := threads(ctx, r, s, run)
	if err != nil {
		return err
	}
	for name, to := range moved {
		if len(threads[name]) == 0 {
			return fault.New(fault.Invalid, fault.Call, "the running domain has no %s", name)
		}
		for _, tid := range threads[name] {
			if err := SetAffinity(tid, OrAllCPUs(to)); err != nil && !errors.Is(err, unix.ESRCH) { // a worker may end at any time
				return err
			}
		}
	}
	return nil
}

// changedBindings returns the new CPUs of each thread with a changed binding. The empty set means any CPU.
func changedBindings(before, after map[uint]topology.CPUSet) map[uint]topology.CPUSet {
	moved := map[uint]topology.CPUSet{}
	for n, was := range before {
		if to, bound := after[n]; !bound || !to.Equal(was) {
			moved[n] = to
		}
	}
	for n, to := range after {
		if _, was := before[n]; !was {
			moved[n] = to
		}
	}
	return moved
}

// SetAffinity binds one thread. An empty set leaves it unchanged.
func SetAffinity(tid int, to topology.CPUSet) error {
	if to.IsEmpty() {
		return nil
	}
	if err := kernel.SetAffinity(tid, to); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot bind thread %d to CPUs %s", tid, to)
	}
	return nil
}
