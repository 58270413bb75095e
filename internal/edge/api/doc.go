// Package api serves Lodge's own API on a unix socket: gRPC, Connect, and plain JSON for unary calls, over
// HTTP/2 and HTTP/1.1.
//
// It offers features that libvirt's protocol lacks: whole sets of guests with streamed results, samples with
// their age, how guests share the host's memory, the event log with marks for lost events, the queue of starts, and
// the daemon's own use of resources. A handler only translates; the packages that it calls do the work. The messages
// (api/lodge/v1, and the code generated from it in api/lodgev1), bounds on clients, and the names of faults on the wire
// belong here. Work on guests does not.
package api
