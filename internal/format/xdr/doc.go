// Package xdr holds libvirt's remote protocol as data: the calls,
// the wire layout of their arguments and results, and the limits.
//
// The procedure table remote.table (beside it qemu.table) is the source. It is
// append-only: a call keeps its number and layout forever. From it the tool
// in xdr/gen makes the structs, their encoders and bounded decoders, and the
// table of procedures that a dispatcher needs. Payloads of one layout share a
// Go type: DomainDestroyArgs and DomainCreateArgs are both WithDomain, so a
// payload's type does not identify the call; its Procedure does.
//
// All input is hostile until it is decoded. The bounds:
//
//	a packet        28 bytes to 32 MiB, checked before anything is read (CheckLength)
//	a string        4 MiB (MaxString), or less by its field
//	a list          the limit of its field, and as many items as the remaining bytes
//	                can hold, checked before anything is allocated (Reader.Count)
//	descriptors     32 with one packet (MaxFDs)
//	trailing bytes  refused (Reader.End)
//
// Errors name the field and the bound. The same limits hold when encoding, because
// stock clients enforce them on replies.
//
// This package knows bytes and names. Sockets, sessions, the meaning of a call and
// error codes are elsewhere.
package xdr

//go:generate go run ./gen
