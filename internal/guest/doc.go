// Package guest keeps the guests of this host: one loop per guest, and the registry that finds the guests.
//
// A guest's loop is the only writer of the daemon's state of that guest. It receives requests as tasks,
// QEMU's events in their order, and the end of the process from the kernel. The loop itself never blocks.
// Everything that may be slow (QEMU, disks, links) runs beside the loop as a job, one at a time per guest,
// and reports back. So no guest can delay another, and destroying a guest never waits for the operation
// that blocks it.
//
// All other code reads the View that the loop publishes. Reading it never blocks.
//
// This package decides the order of the steps that change a guest, and of undoing them. Other packages know
// QEMU's protocol (qmp), its arguments (qemu), the guest's XML (domainxml), and the rules how states follow
// each other (lifecycle).
package guest
