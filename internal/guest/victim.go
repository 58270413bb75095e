package guest

// When the host runs out of memory the kernel kills processes, by its own choice the largest, however
// important the guest is. Lodge sets the order by OOM scores: prepared QEMUs first, then guests by their
// priority. The daemon comes last, because without it no guest is started again. The kernel adds up to 1000
// for a process's size, so that a huge guest may go before a less important small one. Among guests of
// about one size the order holds.
const (
	waitingVictim = 900
	guestVictim   = 300 // the score of priority 0, the default
	// priorityWeight is how many steps of priority (-1000 to 1000, lower is more important) make one step
	// of the kernel's score.
	priorityWeight = 5
)

func victim(priority int) int { return guestVictim + min(max(priority, -1000), 1000)/priorityWeight }

// makeVictim sets the OOM score of a process. A failure is logged, and the start continues.
func (r *Registry) makeVictim(name string, pid, score int) {
	if err := r.Kernel.SetOOMScore(pid, score); err != nil {
		r.log.Warn("cannot set the OOM score; the kernel chooses on its own when memory runs out", "domain", name, "error", err)
	}
}
