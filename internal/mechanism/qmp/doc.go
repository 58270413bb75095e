// Package qmp holds one session with QEMU's monitor.
//
//	QEMU --line--> reader --answer--> the Execute that waits for this id
//	                  \----event----> queue --> Events()
//
// The reader decodes one line and passes it on. It never waits for a consumer, so
// a slow consumer of events cannot delay an answer. QEMU may be compromised, so
// everything that it sends is bounded:
//
//	a line                    64 MiB (MaxLine); a longer one ends the session
//	lines                     128 MiB at once, then 16 MiB a second; each counts as 1 KiB at least
//	commands without answer   128 (maxUnanswered); the next one is refused as busy
//	queued events             1,024, and 16 MiB; then some are dropped, and Resync says so
//	delivered events          8,192 at once, then 1,024 a second
//	text of a refusal         1 KiB (maxDesc)
//
// A line that is no QMP message ends the session: nothing after it can be trusted.
//
// A lost session does not mean that the guest has ended: only the end of its process
// does. The owner of a session calls Close once it is done, also after a loss.
//
// This package knows the protocol, its errors and its schema, and not the meaning
// of single commands.
package qmp
