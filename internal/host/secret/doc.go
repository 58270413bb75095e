// Package secret keeps what guests and images are opened with: passphrases and
// keys, each known by its UUID and by what it is for.
//
// A value is in the clear only while it is used. At rest, in memory as on disk,
// it is sealed: with a key in a file of the data directory that root alone may
// read, and a value that must never be on disk with a key that this process made
// up and keeps in memory that is neither swapped nor dumped. What belongs here:
// definitions, values, keys. What does not: how a value is handed to QEMU or to a
// tool, and who may ask for one.
package secret
