// Package scope carries the authorization of one call: what it may do, and for which client. Every verb that
// changes something, or that opens a path for a client, takes a Scope right after its context.
//
// A Scope answers four questions:
//   - Client: which client the work counts for, within the bounds of work that each client has;
//   - Folders: in which folders the files must lie that the call may open;
//   - Authorize: whether the client may still make the call on a guest, now that its turn has come;
//   - the Reserve methods: whether the client's quota has room. A reservation ends with the call;
//     from then on the objects themselves are counted.
//
// The zero value refuses all of them, with fault.Denied: a scope that was lost on its way opens nothing.
// Daemon makes the only scope without any bound. Search for scope.Daemon to find every use of it.
//
//	scope           Check   Authorize             Folders            Reserve, OpenSecret
//	zero value      denied  denied                none               denied
//	Daemon          ok      ok                    anywhere           ok
//	Client          ok      asks the limits       of its Paths       ask the limits
//	Record.Scope    ok      ok: it has begun      of the record      ok: done at its begin
//
// A Scope is a value: the With methods, Within, CountedFor and AlreadyAuthorized return a changed copy, and the
// zero value stays one. Record is the part of a scope that an operation keeps, so that the next daemon ends the
// operation within the bounds of its client.
package scope
