package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// maxAffinity is how many processors the kernel's calls are given a mask for: the most
// that one is built for. To read into less than the host may have is an error.
const maxAffinity = 8192

// SetAffinity lets a thread run on those processors only.
func SetAffinity(tid int, to topology.CPUSet) error {
	mask := unix.NewCPUSet(maxAffinity)
	for n := range to.All() {
		if n >= maxAffinity {
			return fault.New(fault.Unsupported, fault.Host, "processor %d is beyond the %d that threads can be bound to", n, maxAffinity)
		}
		mask.Set(n)
	}
	return unix.SchedSetaffinityDynamic(tid, mask)
}

// Affinity tells on which processors a thread may run.
func Affinity(tid int) (topology.CPUSet, error) {
	mask := unix.NewCPUSet(maxAffinity)
	if err := unix.SchedGetaffinityDynamic(tid, mask); err != nil {
		return topology.CPUSet{}, err
	}
	var set topology.CPUSet
	for n := range maxAffinity {
		if mask.IsSet(n) {
			set.Add(n)
		}
	}
	return set, nil
}
