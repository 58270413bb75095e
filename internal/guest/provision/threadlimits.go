package provision

import (
	"context"
	"strconv"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// emulatorThreads is the group name of all threads of a guest that are neither vCPUs nor iothreads.
const emulatorThreads = "emulator"

// threads returns the threads of a running guest, by group name: vcpu0, iothread1, emulator.
func threads(ctx context.Context, r *machine.Registry, s *qmp.Session, run *machine.Instance) (map[string][]int, error) {
	vcpus, err := QueryVCPUs(ctx, r, s, run.PID)
	if err != nil {
		return nil, err
	}
	iothreads, err := r.QueryIOThreads(ctx, s, run.PID)
	if err != nil {
		return nil, err
	}
	all, err := r.Kernel.ThreadIDs(run.PID)
	if err != nil {
		return nil, err
	}
	known, named := map[string][]int{}, map[int]bool{}
	note := func(name string, tid int) {
		known[name] = append(known[name], tid)
		named[tid] = true
	}
	for _, v := range vcpus {
		note("vcpu"+strconv.FormatUint(uint64(v.Index), 10), v.Thread)
	}
	for id, tid := range iothreads {
		note("iothread"+strconv.FormatUint(uint64(id), 10), tid)
	}
	for _, tid := range all {
		if !named[tid] {
			known[emulatorThreads] = append(known[emulatorThreads], tid)
		}
	}
	return known, nil
}

// cpuQuota is the CPU time that a thread may use in each period, both in microseconds. 0: unset.
type cpuQuota struct {
	period uint64
	quota  int64
}

// quotaOf returns the quota that a definition gives to the threads of a group.
func quotaOf(t *domain.CPUTune, name string) cpuQuota {
	switch name[0] {
	case 'v':
		return cpuQuota{t.Period, t.Quota}
	case 'i':
		return cpuQuota{t.IOThreadPeriod, t.IOThreadQuota}
	}
	return cpuQuota{t.EmulatorPeriod, t.EmulatorQuota}
}

// LimitThreads limits a guest's threads to the quotas of its definition. Each group is made when it is
// first needed. absent are the limits that this host cannot enforce.
func LimitThreads(ctx context.Context, r *machine.Registry, s *qmp.Session, run *machine.Instance, before, after *domain.CPUTune) (absent []string, err error) {
	different := false
	for _, name := range []string{"vcpu", "iothread", emulatorThreads} {
		different = different || quotaOf(before, name) != quotaOf(after, name)
	}
	if !different {
		return nil, nil
	}
	threads, err := threads(ctx, r, s, run)
	if err != nil {
		return nil, err
	}
	for name, tids := range threads {
		was, is := quotaOf(before, name), quotaOf(after, name)
		if was == is {
			continue
		}
		group := r.Cgroups.Guest(run.UUID).Threads(name)
		if err := group.Create(); err != nil {
			return nil, err
		}
		missing, err := group.Apply(is.limits())
		if err != nil {
			return nil, err
		}
		absent = append(absent, missing...)
		for _, tid := range tids {
			if err := moveThread(group, tid); err != nil {
				return nil, err
			}
		}
	}
	return absent, nil
}

// limits returns the quota as limits of a control group.
func (s cpuQuota) limits() kernel.Limits {
	period, quota := s.period, uint64(kernel.Unlimited)
	if period == 0 {
		period = DefaultPeriod
	}
	if s.quota > 0 {
		quota = uint64(s.quota)
	}
	return kernel.Limits{CPUPeriod: &period, CPUQuota: &quota}
}

// moveThread moves a thread into a control group and restores its CPU binding, which the kernel widens to the
// group's CPUs during the move.
func moveThread(group *kernel.Group, tid int) error {
	bound, err := kernel.Affinity(tid)
	if err != nil {
		return nil // it has ended since
	}
	if err := group.AddThread(tid); err != nil {
		return err
	}
	return SetAffinity(tid, bound)
}

// SettleVCPUs gives attached vCPUs the limits and CPUs of those made at the start. A new thread inherits
// the CPUs of the thread that made it.
func SettleVCPUs(ctx context.Context, r *machine.Registry, s *qmp.Session, run *machine.Instance, def *domain.Definition) error {
	if _, err := LimitThreads(ctx, r, s, run, &domain.CPUTune{}, &def.Tune); err != nil {
		return err
	}
	vcpus, err := QueryVCPUs(ctx, r, s, run.PID)
	if err != nil {
		return err
	}
	for _, v := range vcpus {
		to, pinned := def.Tune.VCPUPins[v.Index]
		if !pinned {
			to = def.VCPUs.CPUs
		}
		if err := SetAffinity(v.Thread, OrAllCPUs(to)); err != nil {
			return err
		}
	}
	return nil
}

// DefaultPeriod is the kernel's period of processor time, in microseconds.
const DefaultPeriod = 100000 // microseconds
