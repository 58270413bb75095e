// Package memory carries out the decisions of the arbiter (decision/arbiter): it samples the host and its guests, and
// moves balloons.
//
// A Manager looks once a second. It reads the host's memory and each guest's resident memory from the kernel. It asks
// the guests' QEMUs for statistics beside its loop, so that a QEMU without an answer delays no other guest. Then the
// arbiter decides. In mode act the manager moves balloons, in mode advise it only shows its decisions, and in mode off
// it does nothing.
//
// A guest's floor is the memory that its user last asked for (virsh setmem, or currentMemory of its definition), unless
// its marks name another one. The manager lends memory above the floor and takes it back. Guests keep their memory when
// the daemon ends, and the next daemon continues with it.
package memory
