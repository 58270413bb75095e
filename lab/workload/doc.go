// Package workload makes the loads that the lab measures with. It is pure Go and
// static: the host runs it beside the daemon, and the lab's agent inside guests.
//
// A load is made by New from its kind and its configuration (JSON), runs until its
// own bound, and tells what it did interval by interval:
//
//	New(kind, config) -> Load.Run(ctx, out) -> Interval, Interval, … -> Total
//
// An interval tells what was meant to begin in it, and apart from that what was meant
// to begin earlier and ended only now. Of an open loop it tells how many arrivals were
// offered, also while a server stands still.
//
// Two paces. Open: arrivals come by a schedule that the server cannot slow down;
// the latency of each counts from the moment it was meant to start, so a server
// that stalls shows in full, and service time stands beside it. Closed: so many
// users, each of whom waits for the answer, thinks, and goes on.
//
// What is promised of every load: it sends only to the address it was given; it
// ends by itself, at the latest one Timeout after its Duration; its memory is
// bounded whatever the server does; what failed is counted as an error and never
// as done, and a histogram of times holds what was done and nothing else.
//
// What belongs here: pacing, counting, and one file for each kind that turns its
// configuration into work. What does not: what a shop or a database's transaction
// is (lab/shop, lab/oltp, lab/bulk), who starts loads, and what figures mean.
package workload
