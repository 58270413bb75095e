// Package memoryreport shows how policies that share a host's memory did in lodge-sim: tables for a terminal and a page,
// and pictures. It knows the simulator's JSON lines only, no code of it.
//
// The first line of a file says what made the others: {"memory": {"command", "commit", "date", "took", "processors"}}.
// Each other line is one policy on one trace, as `lodge-sim memory --json` prints it. A line with several load factors
// is an evaluation and gives the carried load. A line with one factor is a run at the load that all policies of the
// trace have in common.
//
// Loads are shares of the trace's bound, slowdowns fractions (0.05: a guest runs 5 % slower). Carried loads of traces
// differ by a factor, so quotients are joined by their geometric mean.
package memoryreport
