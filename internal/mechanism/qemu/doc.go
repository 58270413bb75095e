// Package qemu turns a definition into what QEMU is told: it fills in what the
// definition leaves open (Complete), and makes the command line (Arguments) and
// the monitor commands of a running guest (AfterStart, Plug, Unplug, ChangeMedia,
// Commit).
//
// Arguments and commands are made without looking at the host: what the host has
// comes in a Plan, and what the binary can do in qemucaps.Capabilities. A text
// that a user wrote is a value in JSON or has its commas doubled, so it cannot
// become another option. Two functions open files that QEMU is handed:
// ListenDisplay and ClaimVSock. The process itself belongs to package qemuprocess.
package qemu
