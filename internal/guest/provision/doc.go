// Package provision gives a guest what it needs of the host: directories, logs, sandbox, open files, control group,
// NICs, host devices, memory from the books, the guest agent's channel.
//
// Launch and hot-plug both use it, and so does adoption, which takes hold of the same things again. Each function that
// acquires something gives the release, or has the instance hold it.
package provision
