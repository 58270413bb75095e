// Package qemu is what Lodge knows and does about QEMU as a program: what a
// binary can do on this host (Probe), what a definition needs of it (Complete)
// and is to it (Arguments, AfterStart, Plug, Unplug), how its process is
// started, watched and found again (Launch, Adopt), and where its monitor
// listens.
//
// What is known about a binary is plain data, found out once and passed by
// value. An accelerator counts as usable only after guest code really ran
// under it. Arguments and steps are made without looking at the host: what was
// found there comes in a Plan. What a user wrote is a value in JSON, or has its
// commas doubled, and can be nothing else. What belongs here needs nothing but
// the binary and the kernel; what a guest is and when it runs is decided above.
package qemu
