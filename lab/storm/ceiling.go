package storm

import (
	"cmp"
	"context"
	"syscall"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/bare"
)

// What one guest takes besides its own memory, and what the host keeps.
const (
	kernelMemory    = 4 << 20 // page tables, stacks and sockets of one QEMU, about, in bytes
	reservedMemory  = 1 << 30 // bytes
	threadsPerGuest = 6
	filesPerGuest   = 4 // of the lab, for a bare QEMU: monitor, standard error, process, place
	filesPerClient  = 1
	filesReserved   = 200
)

// weigh learns how much memory a guest of a shape takes from the first.
func (b *bench) weigh(s shape) error {
	processes, err := bare.Processes(b.name(0))
	if err != nil {
		return err
	}
	own, err := b.machine.OwnMemory(processes[b.name(0)])
	b.own[s] = max(b.own[s], own+kernelMemory)
	b.Log.Info("weighed a guest", "disks", s.disks, "memory_mib", s.memory, "takes_mib", b.own[s]>>20, "free_mib", b.machine.Memory("MemAvailable")>>20)
	return err
}

// affords refuses what this host would not carry, with the sum. Where guests
// are added in parts, only the first of these is looked at: what the others need
// shows then.
func (b *bench) affords(t *target, cell Cell, s shape) error {
	guests, atOnce := uint64(cell.guests()), cell.guests()
	if cell.Scenario == Thousand {
		atOnce = max(1, atOnce/parts)
	}
	if !t.at.Local() {
		guests, atOnce = 0, 0 // of this host only the lab's own files are needed
	}
	if err := b.fits(atOnce, cmp.Or(b.own[s], uint64(s.memory)<<20)); err != nil {
		return err
	}
	for _, limit := range []string{"proc/sys/kernel/threads-max", "proc/sys/kernel/pid_max"} {
		if most := b.machine.Number(limit); most > 0 && guests*threadsPerGuest > most {
			return fault.New(fault.NoCapacity, fault.Host, "%d guests need about %d threads, and /%s is %d", guests, guests*threadsPerGuest, limit, most)
		}
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot read the limit of open files")
	}
	if need := guests*filesPerGuest + uint64(cell.Clients)*filesPerClient + filesReserved; need > files.Cur {
		return fault.New(fault.NoCapacity, fault.Host, "%d guests and %d clients need %d open files of the lab, and its limit is %d: ulimit -n %d raises it",
			guests, cell.Clients, need, files.Cur, need)
	}
	return nil
}

// fits refuses guests that this host has no memory for, each of so many bytes.
func (b *bench) fits(guests int, each uint64) error {
	return enough(guests, each, b.machine.Memory("MemAvailable"))
}

func enough(guests int, each, free uint64) error {
	if need := uint64(guests)*each + reservedMemory; guests > 0 && need > free {
		return fault.New(fault.NoCapacity, fault.Host, "%d guests of %d MiB each and a reserve of %d MiB need %d MiB of memory, and %d MiB are free",
			guests, each>>20, uint64(reservedMemory)>>20, need>>20, free>>20)
	}
	return nil
}

// repeat does something again and again until the window is over, the context
// ends or a call is cut, but at least once and at most so often.
func (t *turn) repeat(ctx context.Context, most int, do func(context.Context) result) []result {
	window, stop := context.WithTimeout(ctx, t.Window)
	defer stop()
	var results []result
	for len(results) < most {
		one := do(ctx)
		results = append(results, one)
		if one.cut() || window.Err() != nil {
			break
		}
	}
	return results
}
