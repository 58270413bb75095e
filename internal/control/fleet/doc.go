// Package fleet works on whole sets of guests: it chooses them by selectors,
// does one verb to all of them in order and with a bound, and makes and removes
// tiles of guests that belong together.
//
// What a set is made of lies with the guests themselves, in the <metadata> of
// their definitions, so that every client of libvirt can read and write it and
// nothing has to be kept in step: labels, the tile, the priority, what a guest
// comes after, and the volumes that were made for it.
//
// A run asks each guest through the guest's own loop, as any client does, and
// holds nothing: a guest that is stuck takes one of the run's places until its
// deadline and delays those only that are to come after it.
//
// What belongs here: who is meant, in which order, how many at once, and what
// became of each. What does not: how a guest is started or stopped (guest), what
// a volume is (volume), and how results are told to a client (api).
package fleet
