// Package sandbox runs programs that are not trusted, a guest's QEMU above all.
// A sandboxed program has
//
//   - a user and group of its own, no capabilities, and no_new_privs;
//   - a root directory of its own in its own mount namespace: the host's programs
//     and libraries read-only, a /dev with a few nodes, its writable directories,
//     and files that the specification names. No /proc, no /sys, nothing else;
//   - its own IPC and UTS namespaces, and an empty network namespace unless it
//     needs the host's network;
//   - a seccomp filter against what no namespace confines: keyrings, sockets of
//     virtual machines, and io_uring, unless it needs that (seccomp.go).
//
// The policy as tables: the paths and nodes of the root are in builder.go
// (programDirs, configFiles) and rootfs.go (nodes, Spec), the system calls in
// seccomp.go, the resource limits in limits.go.
//
// A Builder keeps the template: a mount namespace with only what all programs may
// read. For each program a thread of the daemon enters the template's namespace,
// makes a copy of its own, mounts the root (rootfs.go), calls chroot, drops its
// privileges and forks (enter.go). A process without capabilities cannot leave a
// chroot, nor make a user namespace in it. The program inherits all of this from
// the thread, which then ends. No helper program runs in between, no mount is
// visible on the host, and the kernel removes everything when the program ends.
//
// Labels and scheduling cookies are attributes of the thread: they go into Spec
// and are set in Builder.enter. Limits of the process go into Limits. The package
// does not make files accessible: the caller opens them and passes descriptors,
// so that no file changes its owner.
//
// This package knows nothing of guests, QEMU and disk images, and must not learn it.
package sandbox
