package guest

import (
	"github.com/lodge-kvm/lodge/internal/guest/blockjob"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
)

// A change of a running guest in several steps is an operation: see package operation. Each kind has a file
// with its payload and steps; this file connects the runner to the guest. Only the runner recovers
// interrupted operations: adoption, reconnection and the end of QEMU know no kinds.

// guestOperations are the kinds of operations on a running guest.
var guestOperations = operation.Kinds[*machine.Instance]{
	hotplug.AttachKind, blockjob.BlockCommitKind, hotplug.CleanupKind, hotplug.DetachKind, savestate.DumpKind, hotplug.IOThreadKind, hotplug.MediaKind, savestate.SaveKind, hotplug.UpdateKind,
}

// Operations lists the open operations of all running guests, and the removals after undefinitions.
func Operations(r *machine.Registry) (all []operation.OwnedStatus) {
	for _, set := range undefinitionSets(r) {
		for _, op := range set.Operations() {
			u := op.Work().(*undefineOp)
			all = append(all, operation.OwnedStatus{Status: op.Status(), Name: u.Name, UUID: u.UUID})
		}
	}
	for _, g := range r.All() {
		if run := g.Live.Load(); run != nil {
			all = append(all, run.Ops.List(g.Name(), g.UUID)...)
		}
	}
	return all
}
