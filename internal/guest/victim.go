package guest

// When the host's memory runs out the kernel ends processes, and its own choice is
// the largest: the most important guest as gladly as any. Lodge sets the order:
// QEMUs that only wait for a start first, then guests by their priority, and the
// daemon, without whom nobody takes up what was ended, last. What the kernel adds
// for a process's size is up to 1000, so that a huge guest may go before a small
// one of less importance; the order holds among guests of about one size.
const (
	waitingVictim = 900
	guestVictim   = 300 // of priority 0, the usual one
	// priorityWeight is how many steps of priority (-1000 to 1000, lower is more
	// important) make one of the kernel's.
	priorityWeight = 5
)

func victim(priority int) int { return guestVictim + min(max(priority, -1000), 1000)/priorityWeight }

// makeVictim tells the kernel. That it cannot be told is no reason not to start.
func (r *Registry) makeVictim(name string, pid, score int) {
	if err := r.Kernel.SetOOMScore(pid, score); err != nil {
		r.log.Warn("when memory runs out, the kernel chooses as it likes", "domain", name, "error", err)
	}
}
