// Package qemuprobe runs a QEMU binary to find its capabilities on this host
// (Probe). It asks over the monitor, without a machine, and runs a trial guest
// under each accelerator: an accelerator counts as usable only after guest code
// really ran under it.
//
// The answers are turned into qemucaps.Capabilities without QEMU, so that tests
// can use recorded answers. Only QEMUs without a user's guest run here.
package qemuprobe
