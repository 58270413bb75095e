// Package launch starts a guest: from its definition, from a save image, or on a QEMU that waits for it.
//
// Launch is a start in progress. It is a list of steps, and each step pushes its release. After a failure the
// releases run in reverse order.
package launch
