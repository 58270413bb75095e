// Package rpc speaks libvirt's remote protocol: sockets, sessions, frames, streams, events, the dispatch of calls, and
// libvirt's error codes (errors.go). The packages beside it have the handlers, one package for each driver.
//
// # What belongs here
//
// Protocol and translation. A handler checks flags, finds the object, calls one package that does the work, and puts
// the answer into the call's result. It decides nothing and keeps no state of its own. It waits only for calls that
// the called package bounds.
//
// # How a call travels
//
//	read loop      frame -> table -> Session.checkCall (authenticated, open, read-only)
//	               keepalive is answered here; stream packets go to their stream
//	intake         counts the client's calls in flight; at the bound nothing is read
//	goroutine      ordinary calls wait for one of the client's slots, priority calls
//	               (the table says which) do not; arguments decoded, Session.Authorize,
//	               handler, result encoded
//	write loop     replies, events and stream data of one client, in the order queued
//
// A call without a handler is answered NO_SUPPORT (3), and clients then fall back to older calls. So a handler is
// registered only when it is complete.
//
// # How to add handlers
//
// One file for each group of objects, with a function that registers its calls. table.go of package libvirt names
// that function:
//
//	func NetworkCalls(g rpc.Group) {
//		rpc.On(g, xdr.ProcNetworkCreate, networkCreate)
//	}
//
//	func networkCreate(ctx context.Context, h *rpc.Handlers, s *rpc.Session, args *xdr.NetworkCreateArgs) (*rpc.Void, error) {
//		n, err := findNetwork(h, args.Network)
//		if err != nil {
//			return nil, err
//		}
//		return nil, n.Start(ctx)
//	}
//
// Arguments and result have the types that package xdr names after the call; *Void stands for none. A handler that does
// not agree with the procedure table panics when the table is made.
//
//   - On: arguments in, result or error out.
//   - OnStream: the handler also returns the body that moves the stream's data; *Stream is an io.Reader and io.Writer
//     with back-pressure. Nil from the body means all data is safe; its error reaches the client.
//   - OnFilesIn, OnFilesOut: descriptors come with the call, or go with the reply.
//   - OnAfterReply: the handler also returns a function that runs once the reply is queued.
//
// The objects that handlers call are fields of Backends (server.go), such as h.Networks.
//
// Errors: return the error of the called package; libvirt's code and origin follow from its kind and subject. WithCode
// is for the few codes that do not follow from them.
//
// Flags: CheckFlags names the flags that the handler honours, and refuses all others with INVALID_ARG. Getters of typed
// parameters use ParamFlags, which clears a bit that clients set there. A flag that only clients with write access may
// set (secure XML) is checked by Session.DenyReadOnly.
//
// Contexts: a handler's context ends when the daemon stops, not when the client disconnects. So an operation that has
// begun is finished. Session.Closed closes with the connection, for work that must not outlive its client (auto-destroy).
package rpc
