// Package provision gives a guest the host resources that it needs: directories, logs, sandbox, open files, control
// group, NICs, host devices, memory from the ledger, the guest agent's channel.
//
// Launch and hot-plug use it. Adoption uses it to take hold of the same resources again. A function that acquires a
// resource returns its release, or pushes the release on the instance (PushRelease).
package provision
