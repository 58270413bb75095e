// Package arbiter decides how much memory each running guest gets: the target of its balloon.
//
// It is pure: Decide reads the host and its guests as values, and returns targets with their reasons. It does not
// know where a sample comes from, nor how a balloon moves (control/memory). The same code runs in the simulator
// (cmd/lodge-sim), so the figures of docs/figures-memory.md are those of this package.
//
// A guest's memory has four parts, which are given out in this order:
//
//	need    what its programs hold, by its newest sample
//	margin  the growth that it has shown within a sample's age, and what it lacked lately
//	cache   page cache that saves it from reading again, learned from its major faults
//	spare   the rest, up to its maximum
//
// All targets together stay below the host's memory: a guest grows only into memory that is there. While there is
// enough for the first three parts of all guests, shares do not matter. If not even the needs fit, the shares divide
// what there is. No target is below a guest's floor.
//
// What a guest says is a hint. Its resident memory, which the host counts, is true: a guest gets no more for its
// lies than its shares would give it.
//
// Sources: mission papers 001 and 002 (a manager of balloons is wanted); Waldspurger, "Memory Resource Management in
// VMware ESX Server", OSDI 2002 (min-funding by shares); the constants were tuned in the simulator.
package arbiter
