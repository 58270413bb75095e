// Package fsguard runs calls on file systems that may never answer.
//
// A call into a file system whose server is gone cannot be cancelled: it holds a
// thread of the daemon until the server is back. The bounds, for each mount that
// the kernel lists, and for each disk that is used as a device:
//
//	Do returns to its caller     after 30 s at most (answerTimeout)
//	threads on one mount         16 at most (maxConcurrent)
//	a call counts as hung        after 2 s (hungAfter)
//	with 4 hung calls (maxHung)  later calls fail at once
//
// Do follows symbolic links one by one, so that a hanging call is counted on the
// mount where it hangs.
//
// This package finds the mounts of a path and waits for file systems. It does
// not know what is read or written there. Callers use it for paths from users
// only: the daemon cannot work without its own directories.
package fsguard
