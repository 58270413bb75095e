package libvirt

import (
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/domaincalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/hostcalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/networkcalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/storagecalls"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// newTable names every group of handlers.
func newTable() rpc.Table {
	t := rpc.Table{}
	remote := rpc.Group{Table: t, Program: xdr.ProgramRemote}
	rpc.AuthCalls(remote)
	rpc.ConnectCalls(remote)
	hostcalls.CapabilityCalls(remote)
	hostcalls.BaselineCalls(remote)
	hostcalls.CompareCalls(remote)
	hostcalls.NodeCalls(remote)
	hostcalls.NodeMemoryCalls(remote)
	hostcalls.NodeDeviceCalls(remote)
	storagecalls.PoolCalls(remote)
	storagecalls.VolumeCalls(remote)
	rpc.EventCalls(remote)
	networkcalls.NetworkCalls(remote)
	rpc.EmptyDriverCalls(remote)
	hostcalls.SecretCalls(remote)
	domaincalls.DomainListCalls(remote)
	domaincalls.DomainLifecycleCalls(remote)
	domaincalls.DomainSaveCalls(remote)
	domaincalls.DomainDumpCalls(remote)
	domaincalls.DomainJobCalls(remote)
	domaincalls.DomainStateCalls(remote)
	domaincalls.DomainXMLCalls(remote)
	domaincalls.DomainLifecycleActionCalls(remote)
	domaincalls.DomainDeviceCalls(remote)
	domaincalls.DomainMemoryCalls(remote)
	domaincalls.DomainVCPUCalls(remote)
	domaincalls.DomainIOThreadCalls(remote)
	domaincalls.DomainTuneCalls(remote)
	domaincalls.DomainIOTuneCalls(remote)
	domaincalls.DomainBlockJobCalls(remote)
	domaincalls.DomainInterfaceTuneCalls(remote)
	domaincalls.DomainStatsCalls(remote)
	domaincalls.DomainAddressCalls(remote)
	domaincalls.DomainMetadataCalls(remote)
	domaincalls.DomainConsoleCalls(remote)
	domaincalls.DomainSnapshotCalls(remote)
	domaincalls.DomainGraphicsCalls(remote)
	domaincalls.DomainKeyCalls(remote)
	domaincalls.DomainAgentCalls(remote)
	domaincalls.QEMUCalls(rpc.Group{Table: t, Program: xdr.ProgramQEMU})
	return t
}
