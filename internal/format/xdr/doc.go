// Package xdr holds libvirt's remote protocol as data: which calls there are,
// how their arguments and results lie on the wire, and within which limits.
//
// The procedure table remote.table (beside it qemu.table) is the source. It is
// append-only: a call keeps its number and layout for ever. From it the tool
// in xdr/gen makes the structs, their encoders and bounded decoders, and the
// table of procedures that a dispatcher needs. Payloads of one layout share a
// Go type: DomainDestroyArgs and DomainCreateArgs are both WithDomain, so a
// payload's type does not tell the call; its Procedure does.
//
// Everything that arrives is hostile until decoded: every string, list and
// optional item has a bound, a count is believed only as far as the remaining
// bytes can hold it, and errors name the field and the bound. The same limits
// hold when encoding, because stock clients enforce them on replies.
//
// What belongs here: bytes and names. What does not: sockets, sessions, the
// meaning of a call, error codes.
package xdr

//go:generate go run ./gen
