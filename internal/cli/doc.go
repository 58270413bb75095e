// Package cli is the client of Lodge's own API: it dials the daemon, follows
// operations on sets of guests to their end, and shows the answers as tables,
// lines, a progress bar, a live table, or JSON lines.
//
// It speaks the public API only. Command lodge is built from it. The package
// owns the output that a user sees and the handling of interrupts. It does not
// own the flags (cmd/lodge), and knows nothing of guests but what the daemon
// reports.
package cli
