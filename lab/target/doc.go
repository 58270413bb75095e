// Package target makes the lab's guests at a daemon: their network, their files,
// the guests themselves, the line to the agent inside, and what is done to them
// while they run. All goes by libvirt's protocol, so any daemon that speaks it will
// do.
//
// All that is made carries a name that begins with the run's own, so that it is
// known as the run's even after a crash: Sweep takes it away. Guests, pools and
// networks are transient: no daemon keeps a definition.
//
// What a daemon does not do is told as a Skipped with its words, and is no error
// of the run.
//
// What belongs here: calls and documents. What does not: when they are made, what
// is measured, what runs inside.
package target
