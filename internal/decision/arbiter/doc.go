// Package arbiter decides how much memory each running guest gets: the target of its balloon.
//
// It is pure: Decide reads the host and its guests as values, and returns targets with their reasons. It does not
// know where a sample comes from, nor how a balloon moves (control/memory). The same code runs in the simulator
// (cmd/lodge-sim), so the simulator's figures are those of this package.
//
// A guest's claim has three parts:
//
//	need    what its programs hold, by its newest sample
//	margin  the largest rise of the need of late, and 2 % of its maximum at least
//	cache   page cache that saves it from reading again, learned from its major faults
//
// What all claims leave over is spare: it goes to all guests, in proportion to what they are below their maximum.
//
// Memory that a guest was given and does not hold yet counts a tenth, because most of it is never touched. If the
// claims do not fit, they are squeezed alike: margins to a quarter, then caches, then the rest of the margins. Only
// memory that guests hold is taken. If not even the needs fit, shares decide. No target is below a guest's floor.
//
// Targets move little. A guest shrinks only while more is promised than there is. It grows only while it has less
// than its claim, or swaps; and only into memory that is there.
//
// What a guest says is a hint. What the host holds for it is true: a guest that says it uses more than it ever held
// lies. From then on its shares bound its need, it gets no cache, and its distress moves nothing.
//
// Sources: Waldspurger, "Memory Resource Management in VMware ESX Server", OSDI 2002 (shares, and a tax on idle
// memory, which is not used here: it carried less); the constants were tuned in the simulator on 24 traces and
// checked on 24 others.
package arbiter
