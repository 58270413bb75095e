// Package record is a run's directory: everything that was measured, with all
// that it depends on, so that it can be looked at again without the host.
//
//	run.json            what the run is: scenario, image, targets, host, plan
//	samples.ndjson      one value a line
//	histograms.ndjson   distributions of times, as HdrHistograms
//	telemetry.ndjson    what the host and the guests did, second by second
//	events.ndjson       what happened: skips, failures, changes, marks
//	commands/           exact domain XML and commands
//	SHA256SUMS          of all of these, once the run has ended
//
// A run is made of turns, each one arm's one step in one repetition. A turn
// counts once it has ended: what a run that was killed had written of an
// unfinished turn is cut off when it is resumed, and not read until then.
//
// What belongs here: the form, its reading and writing, and which runs may be
// compared. What does not: statistics, pages, how anything is measured.
package record
