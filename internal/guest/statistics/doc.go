// Package statistics measures running guests: all of them on a schedule, and one at once if a client asks.
//
// Each sample has the time when it was taken. A slow QEMU delays the samples of its own guest only.
package statistics
