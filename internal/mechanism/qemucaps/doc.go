// Package qemucaps describes the features of one QEMU binary on this host, as plain
// data: machine types, accelerators, CPU models, devices, options, monitor
// commands. It also names the CPU features and models that libvirt's clients
// know.
//
// The data names the binary and the host that it is valid for (Identity, Host), so
// that stored capabilities can be checked without running QEMU (Matches). Package
// qemuprobe finds the data. Nothing here starts a process or knows a definition.
package qemucaps
