package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// maxAffinity is the size, in processors, of the masks for the kernel's calls: the most that a
// kernel is built for. The kernel refuses a mask that is smaller than the host may need.
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

// Affinity returns the processors where a thread may run.
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
