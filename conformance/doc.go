// Package conformance drives a real lodged, and through it real QEMU guests,
// with the clients that people already have: virsh, virt-install, virt-clone,
// virt-xml, libvirt-python and go-libvirt. It knows Lodge only from outside.
//
// Each daemon lives in a world of its own: process, network and mount name
// spaces that end with the test and take everything in them along, so tests see
// neither the host's links nor its sockets and leave nothing on it. Before a
// world ends it is searched for what should have been cleaned up.
//
// The tests need root, QEMU and the clients, and skip where one is missing.
package conformance
