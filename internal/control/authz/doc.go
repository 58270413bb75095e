// Package authz decides which client may do what, and writes the audit.
//
// The rules are one readable file: which clients (users, groups, certificates) have which permissions on which
// guests, pools and networks, with images from which places. An edge asks the Authorizer in one place, before it
// acts, and notes the result in the Audit. Without a file every admitted client may do everything, as members
// of the sockets' group always could.
//
// What belongs here: rules, their file, the identity of clients, the rights that a document needs, the
// audit. What does not: the procedures of libvirt and the calls of Lodge's API, which name their permissions
// themselves, and all actions.
package authz
