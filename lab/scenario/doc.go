// Package scenario reads what is to be measured: one YAML file with the guests,
// what runs in them, the loads, what is varied, for how long and how often. It
// makes a Plan of it: every turn with all values filled in.
//
// A file has profiles: sets of variables, of which a run has one. "$name" is a
// variable's value; "${name}" stands within a text. The variables of the step come
// on top of the profile's, and those of the arm on top of both. What has a dot, as
// "${web.address}", is known only once guests run, and left for then. A load says by
// "about" what it does, for those who read its report. It draws from "${load.seed}", and
// its data from "${tile.seed}": both are others in each repetition.
//
// A warm-up is a length, 20s, or a rule, {least: 20s, most: 5m, steady: 5%}: it ends
// when three windows in a row of every load differ by less than that.
//
// Every profile, arm and step is worked out when a file is read, so that one with
// a mistake anywhere is refused with its line before anything is made.
//
// An arm that is native has its roles run outside of a guest (package native). What
// a guest alone can have is refused in it: events, swap, disks without a file
// system, memory of one node. How a guest's disk is attached and formatted, its huge
// pages and its kind of processor mean nothing there, and are left away.
//
// What belongs here: the language, its checks, the sums of what a step needs. What
// does not: guests, daemons, and what a load's configuration means.
package scenario
