// Package volume manages storage pools and their volumes: directories, file systems and NFS exports that Lodge
// mounts, and the images in them.
//
// Readers use a pool's view, which is immutable, and never wait. All work on a pool's file system runs in the
// pool's own worker, as short tasks in turn, each with a deadline, or as a job next to the worker. So a file
// system that does not answer makes only its own pool stale, as its view shows, and delays no other.
//
//	reader  ----> view (published pointer)
//	request ----> worker (bounded queue, one goroutine a pool) ----> view
//	request ----> job (a goroutine, marks its volume) -- worker --> view
//
// Names of volumes are hostile, and so may be the content of a pool. Files are made, changed and removed below
// an open directory, and never through a link that leads out of it. A volume's declared format is recorded,
// because the bytes of the volume belong to a guest.
//
// Volume groups and partitioned disks are pools too. Their volumes are block devices that the host's own tools
// make (LVM's, sfdisk and partx). The tools run in the worker as child processes with a bound on time and
// output. A device that holds data is used only with the overwrite flag, and one in use never.
//
// Pools, the places of their volumes and the work on them belong here. These do not: the tools for block
// devices and their reports (package blockdev below), the layout of an image (room image), and which guest
// uses a volume as a disk (room guest).
package volume
