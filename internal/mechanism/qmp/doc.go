// Package qmp holds one session with QEMU's monitor.
//
//	QEMU --line--> reader --answer--> the Execute that waits for this id
//	                  \----event----> queue --> Events()
//
// The reader decodes one line and passes it on. It never waits for a consumer, so
// a slow consumer of events cannot delay an answer, and QEMU cannot
// block the reader. Everything QEMU sends is hostile input: lines,
// answers in flight and queued events are all bounded.
//
// A lost session does not mean that the guest has ended: only the end of its process
// does. The owner of a session calls Close once it is done, also after a loss.
//
// This package holds the protocol, its errors and its schema. The meaning of
// single commands lies with the packages that send them.
package qmp
