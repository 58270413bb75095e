// Package conformance drives a real lodged, and through it real QEMU guests, with existing clients: virsh,
// virt-install, virt-clone, virt-xml, libvirt-python and go-libvirt. It uses only Lodge's programs and sockets,
// not its packages' internals.
//
// Each daemon lives in a world of its own: process, network and mount name spaces. They end with the test,
// together with everything in them. So tests see neither the host's links nor its sockets and leave nothing on it.
// Before a world ends, the test searches it for objects that the daemon should have removed.
//
// The tests need root, QEMU and the clients. A test skips if one is missing.
package conformance
