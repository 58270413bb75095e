// Package memsim simulates the memory of a KVM host and its guests, second by second, to compare policies that move
// memory between guests.
//
// A trace gives the host and what each guest's programs need at each second. A policy sees what a manager of a real
// host sees (statistics of balloons with their age, resident memory, the host's pressure) and sets the balloons'
// targets. The result says how much the guests were slowed down. The load factor f stands for "f times as many such
// guests": RAM and swap of the host are divided by f, and the guests stay as they are. One run is one factor.
//
// The model follows the reference simulator of issue 27, version 1 of the trace format: the same dynamics, formulas and
// policies, so that the reference serves as a slow twin. Sizes are MiB, rates MiB/s, times whole seconds, slowdowns
// fractions (0.05: a guest runs 5 % slower).
//
// The model knows no NUMA, no huge pages, no zswap, no migration, and no processor cost of balloons. All traces are
// synthetic. Real guests answer whether its numbers hold; it only orders designs.
package memsim
