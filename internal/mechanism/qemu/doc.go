// Package qemu turns a definition into the arguments and commands of QEMU. It fills in
// the values that the definition leaves open (Complete), and makes the command line
// (Arguments) and the monitor commands of a running guest (AfterStart, Plug, Unplug,
// ChangeMedia, Commit).
//
// Arguments and commands are made without access to the host: a Plan holds the host's
// files, sockets and devices, and qemucaps.Capabilities the features of the binary. A text
// that a user wrote is a value in JSON or has its commas doubled, so it cannot
// become another option. Two functions open files that QEMU is handed:
// ListenDisplay and ClaimVSock. The process itself belongs to package qemuprocess.
package qemu
