package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// DomainSnapshotCalls list a domain's snapshots and checkpoints. Making them is not
// built, so the lists are empty. Clients read them before they undefine a domain.
func DomainSnapshotCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainSnapshotNum, domainSnapshotNum)
	rpc.On(g, xdr.ProcDomainSnapshotListNames, domainSnapshotListNames)
	rpc.On(g, xdr.ProcDomainListAllSnapshots, domainListAllSnapshots)
	rpc.On(g, xdr.ProcDomainHasCurrentSnapshot, domainHasCurrentSnapshot)
	rpc.On(g, xdr.ProcDomainSnapshotCurrent, domainSnapshotCurrent)
	rpc.On(g, xdr.ProcDomainSnapshotLookupByName, domainSnapshotLookupByName)
	rpc.On(g, xdr.ProcDomainListAllCheckpoints, domainListAllCheckpoints)
	rpc.On(g, xdr.ProcDomainCheckpointLookupByName, domainCheckpointLookupByName)
	rpc.On(g, xdr.ProcDomainBackupGetXMLDesc, domainBackupXML)
}

// Flags that filter and sort lists: of snapshots by roots, metadata, leaves, states and
// locations; of checkpoints by roots, order and leaves.
const (
	snapshotFilters   = 1<<11 - 1
	checkpointFilters = 1<<4 - 1
)

// checkNone checks the flags and the domain of a call about its snapshots or checkpoints. No domain has any.
func checkNone(h *rpc.Handlers, call string, d xdr.Domain, flags, known uint32) error {
	if err := rpc.CheckFlags(call, flags, known); err != nil {
		return err
	}
	_, err := FindGuest(h, d)
	return err
}

func domainSnapshotNum(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainSnapshotNumArgs) (*xdr.DomainSnapshotNumRet, error) {
	return &xdr.DomainSnapshotNumRet{}, checkNone(h, "DOMAIN_SNAPSHOT_NUM", args.Domain, args.Flags, snapshotFilters)
}

func domainSnapshotListNames(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainSnapshotListNamesArgs) (*xdr.DomainSnapshotListNamesRet, error) {
	return &xdr.DomainSnapshotListNamesRet{}, checkNone(h, "DOMAIN_SNAPSHOT_LIST_NAMES", args.Domain, args.Flags, snapshotFilters)
}

func domainListAllSnapshots(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainListAllSnapshotsArgs) (*xdr.DomainListAllSnapshotsRet, error) {
	return &xdr.DomainListAllSnapshotsRet{}, checkNone(h, "DOMAIN_LIST_ALL_SNAPSHOTS", args.Domain, args.Flags, snapshotFilters)
}

func domainHasCurrentSnapshot(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainHasCurrentSnapshotArgs) (*xdr.DomainHasCurrentSnapshotRet, error) {
	return &xdr.DomainHasCurrentSnapshotRet{}, checkNone(h, "DOMAIN_HAS_CURRENT_SNAPSHOT", args.Domain, args.Flags, 0)
}

func domainSnapshotCurrent(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainSnapshotCurrentArgs) (*xdr.DomainSnapshotCurrentRet, error) {
	if err := checkNone(h, "DOMAIN_SNAPSHOT_CURRENT", args.Domain, args.Flags, 0); err != nil {
		return nil, err
	}
	return nil, fault.New(fault.NotFound, fault.Snapshot, "the domain does not have a current snapshot")
}

func domainSnapshotLookupByName(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainSnapshotLookupByNameArgs) (*xdr.DomainSnapshotLookupByNameRet, error) {
	if err := checkNone(h, "DOMAIN_SNAPSHOT_LOOKUP_BY_NAME", args.Domain, args.Flags, 0); err != nil {
		return nil, err
	}
	return nil, fault.New(fault.NotFound, fault.Snapshot, "no domain snapshot with matching name '%s'", args.Name)
}

func domainListAllCheckpoints(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainListAllCheckpointsArgs) (*xdr.DomainListAllCheckpointsRet, error) {
	return &xdr.DomainListAllCheckpointsRet{}, checkNone(h, "DOMAIN_LIST_ALL_CHECKPOINTS", args.Domain, args.Flags, checkpointFilters)
}

func domainCheckpointLookupByName(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithDomainNameFlags) (*xdr.WithCheckpoint, error) {
	if err := checkNone(h, "DOMAIN_CHECKPOINT_LOOKUP_BY_NAME", args.Domain, args.Flags, 0); err != nil {
		return nil, err
	}
	return nil, rpc.WithCode(rpc.CodeNoCheckpoint, fault.New(fault.NotFound, fault.Snapshot, "no domain checkpoint with matching name '%s'", args.Name))
}

func domainBackupXML(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithDomainFlags) (*xdr.WithXML, error) {
	if err := checkNone(h, "DOMAIN_BACKUP_GET_XML_DESC", args.Domain, args.Flags, 0); err != nil {
		return nil, err
	}
	return nil, rpc.WithCode(rpc.CodeNoBackup, fault.New(fault.NotFound, fault.Domain, "no domain backup job present"))
}
