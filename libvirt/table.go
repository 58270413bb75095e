package libvirt

import "github.com/lodge-kvm/lodge/xdr"

// newTable names every group of handlers.
func newTable() table {
	t := table{}
	remote := group{t, xdr.ProgramRemote}
	authCalls(remote)
	connectCalls(remote)
	capabilityCalls(remote)
	nodeCalls(remote)
	nodeDeviceCalls(remote)
	poolCalls(remote)
	volumeCalls(remote)
	eventCalls(remote)
	networkCalls(remote)
	return t
}
