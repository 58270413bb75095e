// Package qmp holds one session with QEMU's monitor.
//
//	QEMU --line--> reader --answer--> the Execute that waits for this id
//	                  \----event----> queue --> Events()
//
// The reader decodes one line and hands it on; it never waits for anybody, so
// a slow consumer of events cannot hold up an answer and nothing that QEMU
// sends can hold up the reader. Everything QEMU sends is hostile input: lines,
// answers in flight and queued events are all bounded.
//
// A lost session says nothing about the guest: only the end of its process
// does. The owner of a session calls Close once it is done, also after a loss.
//
// What belongs here: the protocol, its errors and its schema. What does not:
// the meaning of single commands, which lives with those who send them.
package qmp
