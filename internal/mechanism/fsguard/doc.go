// Package fsguard does calls on file systems that may never answer.
//
// A call into a file system whose server has gone cannot be ended: it holds a
// thread of the daemon until the server is back. Do lets its caller go in time
// all the same, and sees to it that a dead mount costs few threads and that its
// callers learn at once what the first of them found out by waiting. It counts
// the calls for each mount, as the kernel lists them, and for each disk that is
// used as a device, and follows symbolic links step by step, so that a call that
// hangs is counted where it hangs.
//
// What belongs here: where a path is mounted, and waiting for file systems. What
// does not: what is read or written there. Only paths that users name come here;
// the daemon cannot do without its own directories.
package fsguard
