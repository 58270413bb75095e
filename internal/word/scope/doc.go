// Package scope says what one call may do, and for which client it is made. Every verb that changes
// something, or that opens a path for a client, takes a Scope right after its context.
//
// A Scope answers four questions:
//   - Client: the client that the work counts for, within the bounds of work that each client has;
//   - Folders: the folders of the files that the call may open;
//   - Authorize: whether the call may still be made of a guest, now that its turn has come;
//   - the Reserve methods: whether the client's quota has room. A reservation ends with the call:
//     then the objects themselves are there to be counted.
//
// The zero value refuses all of them, with fault.Denied: a scope that was lost on its way opens nothing.
// Daemon makes the only scope without any bound. Search for scope.Daemon to find every use of it.
//
// A Scope is a value: the methods that narrow it return a changed copy. Record is the part of a scope that
// an operation keeps, so that the next daemon ends the operation within the bounds of its client.
package scope
