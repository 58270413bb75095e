package provision

import (
	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

// guestVictim is the kernel's score of a guest with priority 0, the default.
const guestVictim = 300

// priorityWeight is how many steps of priority (-1000 to 1000, lower is more important) make one step
// of the kernel's score.
const priorityWeight = 5

// OOMScore is the kernel's score of a guest's processes when memory runs out: docs/design.md has the table.
func OOMScore(priority int) int { return guestVictim + min(max(priority, -1000), 1000)/priorityWeight }

// SetOOMScore sets the OOM score of a process. A failure is logged, and the start continues.
func SetOOMScore(r *machine.Registry, name string, pid, score int) {
	if err := r.Kernel.SetOOMScore(pid, score); err != nil {
		r.Log.Warn("cannot set the OOM score; the kernel chooses on its own when memory runs out", "domain", name, "error", err)
	}
}
