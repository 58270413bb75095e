// Package secret stores the passphrases and keys of guests and images, each identified by its UUID and its
// usage.
//
// A value is in the clear only while it is used. At rest, in memory and on disk, it is encrypted with a key in
// a file of the data directory that only root can read. An ephemeral value must never be on disk; its key
// exists only in the memory of this process, which is neither swapped nor dumped. What belongs here:
// definitions, values, keys. What does not: how a value is passed to QEMU or to a tool, and which client may
// read one.
package secret
