package libvirt

import "github.com/lodge-kvm/lodge/internal/format/xdr"

// newTable names every group of handlers.
func newTable() table {
	t := table{}
	remote := group{t, xdr.ProgramRemote}
	authCalls(remote)
	connectCalls(remote)
	capabilityCalls(remote)
	baselineCalls(remote)
	compareCalls(remote)
	nodeCalls(remote)
	nodeDeviceCalls(remote)
	poolCalls(remote)
	volumeCalls(remote)
	eventCalls(remote)
	networkCalls(remote)
	absentCalls(remote)
	secretCalls(remote)
	domainListCalls(remote)
	domainLifeCalls(remote)
	domainSaveCalls(remote)
	domainDumpCalls(remote)
	domainJobCalls(remote)
	domainStateCalls(remote)
	domainXMLCalls(remote)
	domainPolicyCalls(remote)
	domainDeviceCalls(remote)
	domainMemoryCalls(remote)
	domainVCPUCalls(remote)
	domainIOThreadCalls(remote)
	domainTuneCalls(remote)
	domainIOTuneCalls(remote)
	domainBlockJobCalls(remote)
	domainInterfaceTuneCalls(remote)
	domainStatsCalls(remote)
	domainAddressCalls(remote)
	domainMetadataCalls(remote)
	domainConsoleCalls(remote)
	domainSnapshotCalls(remote)
	domainGraphicsCalls(remote)
	domainKeyCalls(remote)
	domainAgentCalls(remote)
	qemuCalls(group{t, xdr.ProgramQEMU})
	return t
}
