// Package authz decides who may do what, and keeps the record of what was done.
//
// The rules are one readable file: who (users, groups, certificates)
// may do which verbs on which guests, pools and networks, with images from
// which places. An edge asks the Gate at one place of its own, before it acts,
// and notes in the Audit what came of it. Without a file whoever was let in may
// do everything, as the sockets' group always could.
//
// What belongs here: rules, their file, who a client is, what a document asks
// for beyond its name, the audit. What does not: libvirt's procedures and the
// calls of Lodge's API, which name their verbs themselves; anything that acts.
package authz
