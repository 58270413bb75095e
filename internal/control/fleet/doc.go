// Package fleet works on sets of guests: it selects them, applies a verb to all of them in order and within a
// bound, and creates and removes tiles. A tile is a group of guests that are made together from one template
// (the word is VMmark's).
//
// The data of sets lie in the <metadata> of the guests' definitions: labels, the tile, the priority, the
// guests to start after, and the volumes made for the guest. So every libvirt client can read and write them,
// and no second copy can differ.
//
// A run calls each guest through the guest's own loop, as any client does, and holds no lock. A stuck guest
// occupies one of the run's slots until its deadline, and delays only the guests that depend on it.
//
// What belongs here: selection, order, parallelism, and the result for each guest. What does not: starting and
// stopping a guest (guest), volumes (volume), and the form of results for clients (api).
package fleet
