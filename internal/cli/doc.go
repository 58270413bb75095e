// Package cli is the other end of Lodge's own API: it dials the daemon, follows
// sets of guests to their end, and shows what it is told as tables, lines, a
// progress bar, a live table, or JSON lines.
//
// It speaks the public API only, and is what command lodge is made of. What
// belongs here: what a user sees, and what becomes of an interrupt. What does
// not: flags (cmd/lodge), and any knowledge of guests that the daemon did not
// tell.
package cli
