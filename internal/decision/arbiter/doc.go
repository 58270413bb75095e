// Package arbiter decides how much memory each running guest gets: the target of its balloon.
//
// It is pure: Decide reads the host and its guests as values, and returns targets with their reasons. It does not
// know where a sample comes from, nor how a balloon moves (control/memory). The same code runs in the simulator
// (cmd/lodge-sim), so the simulator's figures are those of this package.
//
// A guest's claim has three parts:
//
//	need    memory of its programs, by its newest sample
//	margin  the largest recent rise of the need; at least 2 % of its maximum
//	cache   page cache that saves it from reading again, learned from its major faults
//
// The rest is spare. All guests get a part of it, in proportion to their distance from their maximum.
//
// Memory that a guest was given and does not hold yet counts a tenth, because most of it is never touched. If the
// claims do not fit, they are squeezed alike: margins to a quarter, then caches, then the rest of the margins. Only
// memory that guests hold is taken. If not even the needs fit, shares decide. No target is below a guest's floor.
//
// Targets move little. A guest shrinks only while more is promised than there is. It grows only while it has less
// than its claim, or swaps; and only into memory that is there.
//
// A guest's statistics are hints; the host's own count of its memory is true. A guest that reports more than it ever
// held is lying. From then on its shares bound its need, it gets no cache, and its distress moves nothing.
//
// Sources: Waldspurger, "Memory Resource Management in VMware ESX Server", OSDI 2002 (shares, and a tax on idle
// memory, which is not used here: it carried less); the constants were tuned in the simulator on 24 traces and
// checked on 24 others.
package arbiter
