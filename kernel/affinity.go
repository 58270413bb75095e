package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/topology"
)

// maxAffinity is how many processors the kernel's call is given a mask for.
const maxAffinity = 1024

// SetAffinity lets a thread run on those processors only.
func SetAffinity(tid int, to topology.CPUSet) error {
	var mask unix.CPUSet
	for n := range to.All() {
		if n >= maxAffinity {
			return fault.New(fault.Unsupported, fault.Host, "processor %d is beyond the %d that threads can be bound to", n, maxAffinity)
		}
		mask.Set(n)
	}
	return unix.SchedSetaffinity(tid, &mask)
}

// Affinity tells on which processors a thread may run.
func Affinity(tid int) (topology.CPUSet, error) {
	var mask unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &mask); err != nil {
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
