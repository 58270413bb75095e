// Package sandbox makes the place in which a program runs that is not trusted: a
// guest's QEMU above all. Such a program has
//
//   - a user and a group of its own, no capability, no way to gain one;
//   - a root of its own, in a mount namespace of its own: the host's programs and
//     libraries to read, a /dev of a few nodes, one directory that is its own, and
//     what it is given by name. No /proc, no /sys, nothing else of the host's;
//   - namespaces of its own for IPC and the host's name, and for the network one
//     with nothing in it, unless it needs the host's;
//   - no calls of the kernel's that lead out of all of that: to keyrings, to sockets
//     of virtual machines, and by io_uring, unless it needs that.
//
// How it is made: a House keeps a mount namespace in which nothing is but what all
// programs may read, the mould. For each program a thread of the daemon enters
// it, makes a copy that is the thread's own, furnishes it, closes the door
// (chroot: a process without capabilities cannot leave it, and may not even make a
// user namespace in it) and forks. The program inherits all of that from the
// thread, which then ends. Nothing is run in between, nothing is mounted where the
// host sees it, and the kernel takes everything away when the program ends.
//
// Who builds on it: labels, scheduling cookies and the like are the thread's to set
// for what it starts: they go into Chamber, and are done in House.enter. Limits of
// the process go into Limits. Files are not made accessible here: whoever starts a
// program opens them and passes descriptors, so that no file changes its owner.
//
// Nothing of guests, QEMU or disk images may move in.
package sandbox
