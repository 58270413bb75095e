// Package api serves Lodge's own API on a unix socket: gRPC, Connect, and plain
// JSON for single calls, over HTTP/2 and HTTP/1.1.
//
// It has the words that libvirt's protocol lacks: whole sets of guests with
// streamed results, samples with their age, the log of events with marks for
// what was lost, the queue of starts, and what the daemon itself uses. The
// rooms below do the work; a handler translates. What belongs here: the
// messages (api/lodge/v1, and the code made from it in api/lodgev1), bounds on
// clients, and the faults' names on the wire. What does not: how anything is
// done to a guest.
package api
