package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// domainSnapshotCalls list a domain's snapshots and checkpoints. Making them is not
// built, so no domain has any. That is the true answer, and clients ask for it before
// they undefine a domain.
func domainSnapshotCalls(g group) {
	on(g, xdr.ProcDomainSnapshotNum, (*handlers).domainSnapshotNum)
	on(g, xdr.ProcDomainSnapshotListNames, (*handlers).domainSnapshotListNames)
	on(g, xdr.ProcDomainListAllSnapshots, (*handlers).domainListAllSnapshots)
	on(g, xdr.ProcDomainHasCurrentSnapshot, (*handlers).domainHasCurrentSnapshot)
	on(g, xdr.ProcDomainSnapshotCurrent, (*handlers).domainSnapshotCurrent)
	on(g, xdr.ProcDomainSnapshotLookupByName, (*handlers).domainSnapshotLookupByName)
	on(g, xdr.ProcDomainListAllCheckpoints, (*handlers).domainListAllCheckpoints)
	on(g, xdr.ProcDomainCheckpointLookupByName, (*handlers).domainCheckpointLookupByName)
	on(g, xdr.ProcDomainBackupGetXMLDesc, (*handlers).domainBackupXML)
}

// Flags that filter and order lists: for snapshots roots, metadata, leaves, states and
// places; for checkpoints roots, order and leaves.
const (
	snapshotFilters   = 1<<11 - 1
	checkpointFilters = 1<<4 - 1
)

// without checks a call about a snapshot or checkpoint, which no domain has.
func (h *handlers) without(call string, d xdr.Domain, flags, known uint32) error {
	if err := checkFlags(call, flags, known); err != nil {
		return err
	}
	_, err := h.guest(d)
	return err
}

func (h *handlers) domainSnapshotNum(_ context.Context, _ *request, args *xdr.DomainSnapshotNumArgs) (*xdr.DomainSnapshotNumRet, error) {
	return &xdr.DomainSnapshotNumRet{}, h.without("DOMAIN_SNAPSHOT_NUM", args.Domain, args.Flags, snapshotFilters)
}

func (h *handlers) domainSnapshotListNames(_ context.Context, _ *request, args *xdr.DomainSnapshotListNamesArgs) (*xdr.DomainSnapshotListNamesRet, error) {
	return &xdr.DomainSnapshotListNamesRet{}, h.without("DOMAIN_SNAPSHOT_LIST_NAMES", args.Domain, args.Flags, snapshotFilters)
}

func (h *handlers) domainListAllSnapshots(_ context.Context, _ *request, args *xdr.DomainListAllSnapshotsArgs) (*xdr.DomainListAllSnapshotsRet, error) {
	return &xdr.DomainListAllSnapshotsRet{}, h.without("DOMAIN_LIST_ALL_SNAPSHOTS", args.Domain, args.Flags, snapshotFilters)
}

func (h *handlers) domainHasCurrentSnapshot(_ context.Context, _ *request, args *xdr.DomainHasCurrentSnapshotArgs) (*xdr.DomainHasCurrentSnapshotRet, error) {
	return &xdr.DomainHasCurrentSnapshotRet{}, h.without("DOMAIN_HAS_CURRENT_SNAPSHOT", args.Domain, args.Flags, 0)
}

func (h *handlers) domainSnapshotCurrent(_ context.Context, _ *request, args *xdr.DomainSnapshotCurrentArgs) (*xdr.DomainSnapshotCurrentRet, error) {
	if err := h.without("DOMAIN_SNAPSHOT_CURRENT", args.Domain, args.Flags, 0); err != nil {
		return nil, err
	}
	return nil, fault.New(fault.NotFound, fault.Snapshot, "the domain does not have a current snapshot")
}

func (h *handlers) domainSnapshotLookupByName(_ context.Context, _ *request, args *xdr.DomainSnapshotLookupByNameArgs) (*xdr.DomainSnapshotLookupByNameRet, error) {
	if err := h.without("DOMAIN_SNAPSHOT_LOOKUP_BY_NAME", args.Domain, args.Flags, 0); err != nil {
		return nil, err
	}
	return nil, fault.New(fault.NotFound, fault.Snapshot, "no domain snapshot with matching name '%s'", args.Name)
}

func (h *handlers) domainListAllCheckpoints(_ context.Context, _ *request, args *xdr.DomainListAllCheckpointsArgs) (*xdr.DomainListAllCheckpointsRet, error) {
	return &xdr.DomainListAllCheckpointsRet{}, h.without("DOMAIN_LIST_ALL_CHECKPOINTS", args.Domain, args.Flags, checkpointFilters)
}

func (h *handlers) domainCheckpointLookupByName(_ context.Context, _ *request, args *xdr.WithDomainNameFlags) (*xdr.WithCheckpoint, error) {
	if err := h.without("DOMAIN_CHECKPOINT_LOOKUP_BY_NAME", args.Domain, args.Flags, 0); err != nil {
		return nil, err
	}
	return nil, withCode(codeNoCheckpoint, fault.New(fault.NotFound, fault.Snapshot, "no domain checkpoint with matching name '%s'", args.Name))
}

func (h *handlers) domainBackupXML(_ context.Context, _ *request, args *xdr.WithDomainFlags) (*xdr.WithXML, error) {
	if err := h.without("DOMAIN_BACKUP_GET_XML_DESC", args.Domain, args.Flags, 0); err != nil {
		return nil, err
	}
	return nil, withCode(codeNoBackup, fault.New(fault.NotFound, fault.Domain, "no domain backup job present"))
}
