// Package experiment runs a scenario: turn by turn, arm beside arm, it starts the
// guests, sets up what is served, loads them, does to them what the scenario says,
// and keeps what came of it in a record.
//
// The arms of a step are done one right after the other in an order drawn anew for
// each repetition, so that what drifts weighs on all alike. A turn counts when it
// has ended; a run that was killed goes on with the first that has not.
//
// What goes wrong in a turn (a guest that does not boot, a service that dies, a
// load that meets errors) is written down and the run goes on with what is left;
// errors are never counted as work done, and what a server's own books say is held
// against what its load says.
//
// What a run makes or changes is in its journal first, so that Clean can take it
// back after any crash.
//
// What belongs here: order, bounds and bookkeeping of a run. What does not: how
// guests are made (target), what loads do (workload), verdicts and pages.
package experiment
