package arbiter

import "time"

// Rules are the constants of the arbiter. Fractions are of a guest's maximum, unless another whole is named.
type Rules struct {
	// Use is the part of the host's memory that guests may be promised. Growth goes into memory below Limit: at
	// about that part the host begins to swap.
	Use, Limit float64
	// Untouched is what a MiB counts that a guest was given and does not hold yet.
	Untouched float64
	// LeastMargin is a guest's margin without any growth, and MostMargin bounds what growth adds to it.
	LeastMargin, MostMargin float64
	// GrowthWindow is how far back a need is compared with, to see growth. A margin halves within MarginHalf.
	GrowthWindow, MarginHalf time.Duration
	// LastMargin is the part of all margins that is taken last, after the cache.
	LastMargin float64
	// FirstCache is a guest's cache at its start; LeastCache and MostCache bound the learned cache.
	FirstCache, LeastCache, MostCache float64
	// A cache is too small above Refaults major faults a second for each MiB of it. CacheRise then multiplies it at each
	// sample. Otherwise it loses the fraction CacheFall each second.
	Refaults, CacheRise, CacheFall float64
	// Lie is how much more a guest may say that it uses than the host ever held for it.
	Lie float64
	// Dead is the difference that is not worth a move.
	Dead float64
	// StuckAfter is how long a balloon may stay where it is before its guest counts as uncooperative, for StuckFor.
	StuckAfter, StuckFor time.Duration
}

// Budget is what all guests together may be promised, in MiB. It includes what guests with unmoved balloons take.
func (r *Rules) Budget(h Host) float64 { return r.Use*h.Memory - h.Others + h.Shared }

// Tuned are the rules that carried most in the simulator (docs/figures-memory.md).
var Tuned = Rules{
	Use: .97, Limit: .985, Untouched: .10,
	LeastMargin: .02, MostMargin: .20, GrowthWindow: 12 * time.Second, MarginHalf: 5 * time.Minute, LastMargin: .25,
	FirstCache: .10, LeastCache: .02, MostCache: .60, Refaults: .03, CacheRise: 1.06, CacheFall: .002,
	Lie: .05, Dead: .02, StuckAfter: 20 * time.Second, StuckFor: 5 * time.Minute,
}

// Constants that no trace moved, in MiB.
const (
	leastMove  = 32 // a smaller move costs the guest more work than the memory is worth
	leastCache = 4  // the least rise of a cache that is too small
	slack      = 8  // added to a need, for what a sample does not count
)

// Expected growth of a guest without a sample, as a fraction of its maximum: bootGrowth while it boots, idleGrowth
// later.
const (
	booting    = 30 * time.Second
	bootGrowth = .10
	idleGrowth = .01
)
