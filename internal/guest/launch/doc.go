// Package launch starts a guest: from its definition, from a save image, or on a QEMU that waits for it.
//
// Launch is a start under way: a list of steps, each of which pushes its release. A failure releases in reverse order.
package launch
