// Package machine has one guest and its running QEMU, and the registry that finds guests.
//
// Guest is what a guest's loop owns: definition, state, mailbox, the job under way, the published View. Instance is one
// running QEMU: process, monitor, what it holds of the host and how that is given back, its run record. Task is one
// request to a loop. Registry finds guests by name, UUID and ID.
//
// What belongs here: state that several of the packages beside this one share, how the loop is asked, and how state is
// published and journalled. What does not: the loop itself, adoption and the verbs of the life cycle (package guest),
// and what is done to a guest (the other folders of guest). Those are functions that take a *Guest or an *Instance.
package machine
