// Package machine has the types of a guest and of its running QEMU, and the registry that finds guests.
//
// Guest is the data that a guest's loop owns: definition, state, mailbox, the current job, the published
// View. Instance is one running QEMU: process, monitor, the host resources that it holds with their releases,
// and its record on disk. Task is one request to a loop. Registry finds guests by name, UUID and ID.
//
// The package has the state that several packages below guest share, the requests to a loop, and the writing and
// publishing of state. The loop, adoption and the verbs of the life cycle are in package guest. Changes of a guest,
// such as hot-plug, are in the other packages below it. They are functions that take a *Guest or an *Instance.
package machine
