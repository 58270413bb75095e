// Package lab measures daemons that speak libvirt's protocol: what one adds to
// bare QEMU, and what it takes for itself. It is a stranger to Lodge: it uses
// the public protocol and what the kernel tells of processes, so the same
// bytes go to Lodge and to libvirt's own daemon, and the same code reads the
// clock.
//
// Measure takes one daemon's start figures and gives a Run: every single value
// with the facts of the host it was measured on. A Run is kept as lines of JSON.
// Tables and pages are made from Runs and hold nothing that a Run does not.
//
// What belongs here: measurements, their statistics and how they are shown.
// What does not: knowledge of a daemon's inside, and pass marks.
package lab
