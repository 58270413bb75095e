// Package image reads, makes, resizes and copies disk images, and opens their backing chains.
//
// Headers are read here and not by qemu-img: a pool of a thousand images then costs a thousand small reads
// and no process. Every image is hostile. So each count and offset in a header is checked, a declared
// format is never probed again (a raw disk on which the guest wrote a qcow2 header stays raw), and a
// backing chain follows only layers with a declared format.
//
// qemu-img makes and copies images. It runs as a child with limits on time, memory, processor time and
// output, in its own process group, and ends with the daemon. It gets open files, so no path is resolved
// twice.
//
// While QEMU or qemu-img can write an image, a record in an extended attribute keeps what its header names
// (record.go): a compromised program cannot make the daemon open another file.
//
// The package handles one image file and its chain. Where images lie, who owns them and who may use them
// is decided above.
package image
