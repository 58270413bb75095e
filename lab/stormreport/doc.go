// Package stormreport says what storms came to: a verdict in words, the table
// of what was promised, beside it what was measured, and pictures, as text for
// a terminal, as tables for a page and as one HTML file that needs nothing from
// outside.
//
// All of it is made from what storm.Run keeps. Each value is kept with its
// repetition, and values are compared repetition by repetition, because what
// troubles a host in one troubles all targets of it. Intervals are bootstraps
// over repetitions: single calls of one storm depend on each other, and their
// number says nothing of how sure a figure is.
//
// The first daemon of a run is the subject, which the promises are of; the
// others stand beside it. What has not ended is shown as not ended and never as
// a time.
//
// What belongs here: promises (promises.go), what is said, how it looks. What
// does not: how anything is measured (storm), arithmetic (stats), drawing (plot).
package stormreport
