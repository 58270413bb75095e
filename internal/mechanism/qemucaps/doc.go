// Package qemucaps describes what one QEMU binary can do on this host, as plain
// data: machine types, accelerators, CPU models, devices, options, monitor
// commands. It also names the CPU features and models that libvirt's clients
// know.
//
// The data says which binary and which host it holds for (Identity, Host), so
// that stored capabilities can be checked without running QEMU (Matches). They
// are found by package qemuprobe. Nothing here starts a process or knows a
// definition.
package qemucaps
