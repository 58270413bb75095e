package arbiter

import "time"

// Rules are the constants of the arbiter. Fractions are of a guest's maximum, unless another whole is named.
type Rules struct {
	// Use is the part of the host's memory that all targets together may reach. The rest is for what the host
	// takes between two looks.
	Use float64
	// Headroom is the part of the host's memory, above Use, into which guests in distress may still grow.
	Headroom float64
	// LeastMargin is a guest's margin without any growth, and MostMargin bounds what growth adds.
	LeastMargin, MostMargin float64
	// GrowthWindow is how far back a need is compared with, to see growth. A margin of growth halves within
	// MarginHalf.
	GrowthWindow, MarginHalf time.Duration
	// FirstCache is the cache that a guest starts with, LeastCache the least that it keeps and MostCache the most.
	FirstCache, LeastCache, MostCache float64
	// CacheRise multiplies the cache at each sample with more than Hungry major faults a second, and CacheFall is
	// the fraction by which it falls each second without.
	CacheRise, Hungry, CacheFall float64
	// Distress is what a sample with swap-in or direct scans adds to the margin, up to MostDistress. It fades with
	// DistressFades.
	Distress, MostDistress float64
	DistressFades          time.Duration
	// Dead is the difference that is not worth a move. Upgrade is the difference that is worth one when nothing
	// asks for it, and then Rest passes between two moves.
	Dead, Upgrade float64
	Rest          time.Duration
	// StuckAfter is how long a balloon may stay where it is before its guest counts as uncooperative, for StuckFor.
	StuckAfter, StuckFor time.Duration
}

// Tuned are the rules that carried most in the simulator (docs/figures-memory.md).
var Tuned = Rules{
	Use: .975, Headroom: .01,
	LeastMargin: .02, MostMargin: .25, GrowthWindow: 12 * time.Second, MarginHalf: 5 * time.Minute,
	FirstCache: .10, LeastCache: .02, MostCache: .60, CacheRise: 1.06, Hungry: 8, CacheFall: .001,
	Distress: .02, MostDistress: .15, DistressFades: 10 * time.Minute,
	Dead: .02, Upgrade: .08, Rest: time.Minute,
	StuckAfter: 20 * time.Second, StuckFor: 5 * time.Minute,
}

// leastMove is the smallest move of a balloon, in MiB: below it the guest's work costs more than the memory is worth.
const leastMove = 32
