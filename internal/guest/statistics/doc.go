// Package statistics measures running guests: on a schedule for all, and at once for a client that asks.
//
// A sample is as old as it says. One guest whose QEMU is slow delays no other guest's sample.
package statistics
