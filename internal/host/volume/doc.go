// Package volume keeps storage pools and their volumes: directories, file
// systems and NFS exports that Lodge mounts, and the images in them.
//
// A pool is read by way of its view, which is immutable and never waited for.
// Everything that touches a pool's file system goes through the pool's own
// lane, one short task after another with a deadline, or runs as a job beside
// it. So a file system that does not answer makes its own pool stale, in its
// view and by name, and holds up nobody else.
//
//	reader  ----> view (published pointer)
//	request ----> lane (bounded queue, one goroutine a pool) ----> view
//	request ----> job (a goroutine, marks its volume) -- lane --> view
//
// Names of volumes are hostile, and so may be what lies in a pool: files are
// made, changed and removed below an open directory and never through a link
// that leads out of it. A volume's declared format is remembered, because the
// bytes of the volume belong to a guest.
//
// Volume groups and partitioned disks are pools too. Their volumes are block
// devices that the host's own tools cut out (LVM's, sfdisk and partx), run in
// the lane as children with a bound on time and output. A device that holds
// something is taken only when told to overwrite, and one in use never.
//
// What belongs here: what a pool is, where its volumes are, and who works on
// them. What does not: the tools for block devices and their reports (package
// blockdev below), the layout of an image (room image) and who uses a volume
// as a disk (room guest).
package volume
