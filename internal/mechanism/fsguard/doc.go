// Package fsguard runs calls on file systems that may never answer.
//
// A call into a file system whose server is gone cannot be cancelled: it holds a
// thread of the daemon until the server is back. Do still returns to its caller in time.
// A dead mount costs few threads: after the first callers have waited in vain, later
// ones fail at once. Do counts
// calls per mount, as the kernel lists them, and per disk that is
// used as a device. It follows symbolic links one by one, so that a hanging
// call is counted on the mount where it hangs.
//
// This package finds the mounts of a path and waits for file systems. It does
// not know what is read or written there. Only paths from users come here;
// the daemon cannot work without its own directories.
package fsguard
