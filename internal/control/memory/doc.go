// Package memory carries out what the arbiter (decision/arbiter) decides: it samples the host and its guests, and moves
// balloons.
//
// A Manager looks once a second. It reads the host's memory and each guest's resident memory from the kernel, asks
// guests' drivers for their statistics beside that (a guest that does not answer delays nobody), and lets the arbiter
// decide. In mode act it moves the balloons; in mode advise it only shows what it would do; in mode off it does not even
// look.
//
// A guest's floor is what its user last asked for (virsh setmem, or currentMemory of its definition), so that the
// manager lends memory above that and takes it back, and never takes what the user gave. Close leaves every guest with
// what it has; the next daemon goes on from there.
package memory
