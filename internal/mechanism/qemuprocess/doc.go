// Package qemuprocess starts a process that outlives the daemon, watches it by a
// pidfd, and finds it again after a restart of the daemon (Launch, Adopt). It
// also makes the socket that a monitor listens on.
//
// A process is known by its pid and start time, never by its pid alone. The
// package does not know what the process runs: arguments come from package qemu,
// the sandbox from package sandbox.
package qemuprocess
