// Package pages says what a run came to, from its record alone: what ran, where
// and how, each load's throughput and times, how tiles share and how they add up,
// which bounds held, whether both sides counted the same, and what was skipped.
//
// An arm outside of a guest stands beside those in guests as what they are a part of,
// their efficiency; it is never one of the things that are compared.
//
// Shares, linearity and fairness of a load by schedule are of what was served of what it
// was offered: what it did depends on what chance offers. A stall is zeros on a time line,
// and told. What failed, and what was skipped, comes before anything else that is said. A
// difference that is not settled is told with what was seen and what would settle it.
//
// A value of a step is the median over repetitions, and its interval a bootstrap
// over them: windows and operations of one repetition depend on each other.
// Percentiles are of merged histograms and never means of percentiles. A run under
// emulation, or of the profiles mini and smoke, shows that the lab works and no more: its
// report says so first.
//
// What belongs here: sums over a record and their words. What does not: how
// anything is measured (experiment), arithmetic (stats), drawing (plot).
package pages
