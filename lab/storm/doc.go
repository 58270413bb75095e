// Package storm does to daemons what hosts with hundreds of guests do to them,
// all at once, and keeps the time of every call: storms of starts, definitions,
// connections and saves, statistics of everything, guests whose QEMU is stopped
// with callers hanging on them, a daemon that is killed, many clients on one
// guest, and one guest more and more.
//
// Targets are measured in one run and in turns: repetition by repetition, in an
// order drawn anew each time from a seed that is kept, the bare command line
// among them, so that what drifts weighs on all alike. What has not ended
// within the lab's patience is kept as blocked and not left out.
//
// Do gives a Run. A Run is kept as lines of JSON; tables and pages are made
// from Runs.
//
// What a run makes carries a name of its own and is gone when it returns,
// however it ends; other guests are left alone.
//
// What belongs here: scenarios, their order and bounds, what is recorded. What
// does not: statistics (stats), pages, knowledge of a daemon's inside.
package storm
