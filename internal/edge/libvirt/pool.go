package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/host/volume"
)

// Flags of pool calls.
const (
	poolCreateWithBuild            = 1
	poolCreateWithBuildOverwrite   = 2
	poolCreateWithBuildNoOverwrite = 4
	poolCreateAll                  = 7

	poolBuildNoOverwrite = 4
	poolBuildOverwrite   = 8

	poolDefineValidate = 1
	poolXMLInactive    = 1
)

// Filters of listing pools. Those of one line exclude each other only when
// both are left out.
const (
	poolListInactive    = 1 << 0
	poolListActive      = 1 << 1
	poolListPersistent  = 1 << 2
	poolListTransient   = 1 << 3
	poolListAutostart   = 1 << 4
	poolListNoAutostart = 1 << 5
	poolListAll         = 1<<20 - 1
)

// poolListTypes are the filters by type. The types that are not built have
// bits too, and no pools.
var poolListTypes = map[volume.Type]uint32{
	volume.Dir: 1 << 6, volume.FS: 1 << 7, volume.NetFS: 1 << 8, volume.Logical: 1 << 9, volume.Disk: 1 << 10,
}

const poolListAnyType = poolListAll &^ (1<<6 - 1)

// poolStates are libvirt's numbers of states.
var poolStates = map[volume.State]byte{volume.Inactive: 0, volume.Building: 1, volume.Running: 2, volume.Inaccessible: 4}

// poolCalls read, change, start and stop storage pools.
func poolCalls(g group) {
	on(g, xdr.ProcConnectListAllStoragePools, (*handlers).listAllPools)
	on(g, xdr.ProcConnectNumOfStoragePools, (*handlers).numOfPools)
	on(g, xdr.ProcConnectListStoragePools, (*handlers).listPools)
	on(g, xdr.ProcConnectNumOfDefinedStoragePools, (*handlers).numOfDefinedPools)
	on(g, xdr.ProcConnectListDefinedStoragePools, (*handlers).listDefinedPools)
	on(g, xdr.ProcConnectFindStoragePoolSources, (*handlers).findPoolSources)
	on(g, xdr.ProcConnectGetStoragePoolCapabilities, (*handlers).poolCapabilities)
	on(g, xdr.ProcStoragePoolLookupByName, (*handlers).poolLookupByName)
	on(g, xdr.ProcStoragePoolLookupByUUID, (*handlers).poolLookupByUUID)
	on(g, xdr.ProcStoragePoolLookupByVolume, (*handlers).poolLookupByVolume)
	on(g, xdr.ProcStoragePoolLookupByTargetPath, (*handlers).poolLookupByTarget)
	on(g, xdr.ProcStoragePoolDefineXML, (*handlers).poolDefine)
	on(g, xdr.ProcStoragePoolCreateXML, (*handlers).poolCreateXML)
	on(g, xdr.ProcStoragePoolCreate, (*handlers).poolCreate)
	on(g, xdr.ProcStoragePoolBuild, (*handlers).poolBuild)
	on(g, xdr.ProcStoragePoolDestroy, (*handlers).poolDestroy)
	on(g, xdr.ProcStoragePoolDelete, (*handlers).poolDelete)
	on(g, xdr.ProcStoragePoolUndefine, (*handlers).poolUndefine)
	on(g, xdr.ProcStoragePoolRefresh, (*handlers).poolRefresh)
	on(g, xdr.ProcStoragePoolGetInfo, (*handlers).poolInfo)
	on(g, xdr.ProcStoragePoolGetXMLDesc, (*handlers).poolXML)
	on(g, xdr.ProcStoragePoolGetAutostart, (*handlers).poolGetAutostart)
	on(g, xdr.ProcStoragePoolSetAutostart, (*handlers).poolSetAutostart)
	on(g, xdr.ProcStoragePoolIsActive, (*handlers).poolIsActive)
	on(g, xdr.ProcStoragePoolIsPersistent, (*handlers).poolIsPersistent)
	on(g, xdr.ProcStoragePoolNumOfVolumes, (*handlers).poolNumOfVolumes)
	on(g, xdr.ProcStoragePoolListVolumes, (*handlers).poolListVolumes)
	on(g, xdr.ProcStoragePoolListAllVolumes, (*handlers).poolListAllVolumes)
}

// pool finds a pool by the UUID that a client names.
func (h *handlers) pool(p xdr.StoragePool) (*volume.Pool, error) {
	return h.Pools.ByUUID(formatUUID(p.UUID))
}

// poolReply gives a pool as calls return it, or passes an error on.
func poolReply(p *volume.Pool, err error) (*xdr.WithPool, error) {
	if err != nil {
		return nil, err
	}
	named, err := wirePool(p)
	return &xdr.WithPool{Pool: named}, err
}

func wirePool(p *volume.Pool) (xdr.StoragePool, error) {
	id, err := parseUUID(p.UUID())
	return xdr.StoragePool{Name: p.Name(), UUID: id}, err
}

func (h *handlers) listAllPools(_ context.Context, s *request, args *xdr.ConnectListAllStoragePoolsArgs) (*xdr.ConnectListAllStoragePoolsRet, error) {
	if err := checkFlags("CONNECT_LIST_ALL_STORAGE_POOLS", args.Flags, poolListAll); err != nil {
		return nil, err
	}
	ret := &xdr.ConnectListAllStoragePoolsRet{}
	for _, p := range h.Pools.List() {
		if !poolMatches(p.View(), args.Flags) || !s.seesPool(p) {
			continue
		}
		ret.Count++
		if args.NeedResults {
			named, err := wirePool(p)
			if err != nil {
				return nil, err
			}
			ret.Pools = append(ret.Pools, named)
		}
	}
	return ret, nil
}

// poolMatches says whether a pool passes the filters. If any bit of a group is set, the
// pool must match one of the set bits.
func poolMatches(v volume.View, flags uint32) bool {
	fits := func(group, bit uint32) bool { return flags&group == 0 || flags&bit != 0 }
	either := func(is bool, yes, no uint32) bool {
		if is {
			return fits(yes|no, yes)
		}
		return fits(yes|no, no)
	}
	return either(v.Active(), poolListActive, poolListInactive) &&
		either(v.Persistent, poolListPersistent, poolListTransient) &&
		either(v.Autostart, poolListAutostart, poolListNoAutostart) &&
		fits(poolListAnyType, poolListTypes[v.Type])
}

// poolNames gives the names of active or of inactive pools, up to a number.
func (h *handlers) poolNames(s *session, active bool, most int32) []string {
	var names []string
	for _, p := range h.Pools.List() {
		if p.View().Active() == active && len(names) < int(most) && s.seesPool(p) {
			names = append(names, p.Name())
		}
	}
	return names
}

func (h *handlers) numOfPools(_ context.Context, s *request, _ *void) (*xdr.WithCount, error) {
	return &xdr.WithCount{Count: int32(len(h.poolNames(s.session, true, xdr.MaxStoragePoolList)))}, nil
}

func (h *handlers) listPools(_ context.Context, s *request, args *xdr.WithMaxNames) (*xdr.WithNames, error) {
	return &xdr.WithNames{Names: h.poolNames(s.session, true, args.MaxNames)}, nil
}

func (h *handlers) numOfDefinedPools(_ context.Context, s *request, _ *void) (*xdr.WithCount, error) {
	return &xdr.WithCount{Count: int32(len(h.poolNames(s.session, false, xdr.MaxStoragePoolList)))}, nil
}

func (h *handlers) listDefinedPools(_ context.Context, s *request, args *xdr.WithMaxNames) (*xdr.WithNames, error) {
	return &xdr.WithNames{Names: h.poolNames(s.session, false, args.MaxNames)}, nil
}

func (h *handlers) findPoolSources(ctx context.Context, _ *request, args *xdr.ConnectFindStoragePoolSourcesArgs) (*xdr.WithXML, error) {
	if err := checkFlags("CONNECT_FIND_STORAGE_POOL_SOURCES", args.Flags, 0); err != nil {
		return nil, err
	}
	spec := "<source/>"
	if args.SourceSpec != nil && *args.SourceSpec != "" {
		spec = *args.SourceSpec
	}
	doc, err := volume.FindSources(ctx, volume.Type(args.Type), spec)
	return &xdr.WithXML{XML: doc}, err
}

func (h *handlers) poolCapabilities(_ context.Context, _ *request, args *xdr.WithFlags) (*xdr.WithCapabilities, error) {
	if err := checkFlags("CONNECT_GET_STORAGE_POOL_CAPABILITIES", args.Flags, 0); err != nil {
		return nil, err
	}
	doc, err := volume.Capabilities()
	return &xdr.WithCapabilities{Capabilities: doc}, err
}

func (h *handlers) poolLookupByName(_ context.Context, _ *request, args *xdr.WithName) (*xdr.WithPool, error) {
	return poolReply(h.Pools.ByName(args.Name))
}

func (h *handlers) poolLookupByUUID(_ context.Context, _ *request, args *xdr.WithUUID) (*xdr.WithPool, error) {
	return poolReply(h.Pools.ByUUID(formatUUID(args.UUID)))
}

func (h *handlers) poolLookupByVolume(_ context.Context, _ *request, args *xdr.WithVolume) (*xdr.WithPool, error) {
	return poolReply(h.Pools.ByName(args.Volume.Pool))
}

func (h *handlers) poolLookupByTarget(_ context.Context, _ *request, args *xdr.WithPath) (*xdr.WithPool, error) {
	return poolReply(h.Pools.ByTarget(args.Path))
}

func (h *handlers) poolDefine(ctx context.Context, s *request, args *xdr.WithXMLFlags) (*xdr.WithPool, error) {
	if err := checkFlags("STORAGE_POOL_DEFINE_XML", args.Flags, poolDefineValidate); err != nil {
		return nil, err
	}
	return poolReply(h.Pools.Define(ctx, s.scope, args.XML, args.Flags&poolDefineValidate != 0))
}

func (h *handlers) poolCreateXML(ctx context.Context, s *request, args *xdr.WithXMLFlags) (*xdr.WithPool, error) {
	if err := checkFlags("STORAGE_POOL_CREATE_XML", args.Flags, poolCreateAll); err != nil {
		return nil, err
	}
	build, err := buildOf(args.Flags)
	if err != nil {
		return nil, err
	}
	p, err := h.Pools.Create(ctx, s.scope, args.XML, false, build)
	return poolReply(p, ofStorage(err))
}

func (h *handlers) poolCreate(ctx context.Context, s *request, args *xdr.WithPoolFlags) (*void, error) {
	if err := checkFlags("STORAGE_POOL_CREATE", args.Flags, poolCreateAll); err != nil {
		return nil, err
	}
	build, err := buildOf(args.Flags)
	if err != nil {
		return nil, err
	}
	return h.onPool(args.Pool, func(p *volume.Pool) error { return ofStorage(p.Start(ctx, s.scope, build)) })
}

// buildOf reads the flags for creating a pool. Two of them exclude each other.
func buildOf(flags uint32) (volume.Build, error) {
	switch overwrite, keep := flags&poolCreateWithBuildOverwrite != 0, flags&poolCreateWithBuildNoOverwrite != 0; {
	case overwrite && keep:
		return 0, fault.New(fault.Invalid, fault.Call, "to overwrite and not to overwrite exclude each other")
	case overwrite:
		return volume.Overwrite, nil
	case keep:
		return volume.KeepExisting, nil
	case flags&poolCreateWithBuild != 0:
		return volume.MakeTarget, nil
	}
	return volume.NoBuild, nil
}

func (h *handlers) poolBuild(ctx context.Context, s *request, args *xdr.WithPoolFlags) (*void, error) {
	if err := checkFlags("STORAGE_POOL_BUILD", args.Flags, poolBuildOverwrite|poolBuildNoOverwrite); err != nil {
		return nil, err
	}
	how := volume.MakeTarget
	switch args.Flags {
	case poolBuildOverwrite:
		how = volume.Overwrite
	case poolBuildNoOverwrite:
		how = volume.KeepExisting
	case poolBuildOverwrite | poolBuildNoOverwrite:
		return nil, fault.New(fault.Invalid, fault.Call, "to overwrite and not to overwrite exclude each other")
	}
	return h.onPool(args.Pool, func(p *volume.Pool) error { return p.Build(ctx, s.scope, how) })
}

// onPool finds the pool that a client names and runs one function on it.
func (h *handlers) onPool(named xdr.StoragePool, do func(*volume.Pool) error) (*void, error) {
	p, err := h.pool(named)
	if err != nil {
		return nil, err
	}
	return nil, do(p)
}

func (h *handlers) poolDestroy(ctx context.Context, s *request, args *xdr.WithPool) (*void, error) {
	return h.onPool(args.Pool, func(p *volume.Pool) error { return p.Stop(ctx, s.scope) })
}

func (h *handlers) poolDelete(ctx context.Context, s *request, args *xdr.WithPoolFlags) (*void, error) {
	if err := checkFlags("STORAGE_POOL_DELETE", args.Flags, 0); err != nil {
		return nil, err
	}
	return h.onPool(args.Pool, func(p *volume.Pool) error { return p.Delete(ctx, s.scope) })
}

func (h *handlers) poolUndefine(ctx context.Context, s *request, args *xdr.WithPool) (*void, error) {
	return h.onPool(args.Pool, func(p *volume.Pool) error { return p.Undefine(ctx, s.scope) })
}

func (h *handlers) poolRefresh(ctx context.Context, s *request, args *xdr.WithPoolFlags) (*void, error) {
	if err := checkFlags("STORAGE_POOL_REFRESH", args.Flags, 0); err != nil {
		return nil, err
	}
	return h.onPool(args.Pool, func(p *volume.Pool) error { return p.Refresh(ctx, s.scope) })
}

func (h *handlers) poolInfo(ctx context.Context, _ *request, args *xdr.WithPool) (*xdr.StoragePoolGetInfoRet, error) {
	p, err := h.pool(args.Pool)
	if err != nil {
		return nil, err
	}
	v := p.Fresh(ctx)
	return &xdr.StoragePoolGetInfoRet{
		State: poolStates[v.State], Capacity: v.Capacity, Allocation: v.Allocation, Available: v.Available,
	}, nil
}

func (h *handlers) poolXML(ctx context.Context, _ *request, args *xdr.WithPoolFlags) (*xdr.WithXML, error) {
	if err := checkFlags("STORAGE_POOL_GET_XML_DESC", args.Flags, poolXMLInactive); err != nil {
		return nil, err
	}
	p, err := h.pool(args.Pool)
	if err != nil {
		return nil, err
	}
	p.Fresh(ctx)
	doc, err := inTurn(ctx, func() (string, error) { return p.XML(args.Flags&poolXMLInactive != 0) })
	return &xdr.WithXML{XML: doc}, err
}

func (h *handlers) poolGetAutostart(_ context.Context, _ *request, args *xdr.WithPool) (*xdr.WithAutostart, error) {
	p, err := h.pool(args.Pool)
	if err != nil {
		return nil, err
	}
	return &xdr.WithAutostart{Autostart: p.View().Autostart}, nil
}

func (h *handlers) poolSetAutostart(ctx context.Context, s *request, args *xdr.StoragePoolSetAutostartArgs) (*void, error) {
	return h.onPool(args.Pool, func(p *volume.Pool) error {
		err := p.SetAutostart(ctx, s.scope, args.Autostart)
		if err != nil && !p.View().Persistent {
			return withCode(codeInternal, err)
		}
		return err
	})
}

func (h *handlers) poolIsActive(_ context.Context, _ *request, args *xdr.WithPool) (*xdr.WithActive, error) {
	p, err := h.pool(args.Pool)
	if err != nil {
		return nil, err
	}
	return &xdr.WithActive{Active: p.View().Active()}, nil
}

func (h *handlers) poolIsPersistent(_ context.Context, _ *request, args *xdr.WithPool) (*xdr.WithPersistent, error) {
	p, err := h.pool(args.Pool)
	if err != nil {
		return nil, err
	}
	return &xdr.WithPersistent{Persistent: p.View().Persistent}, nil
}

// poolVolumes gives the volumes of an active pool.
func (h *handlers) poolVolumes(named xdr.StoragePool) ([]*volume.Volume, error) {
	p, err := h.pool(named)
	if err != nil {
		return nil, err
	}
	return p.Volumes()
}

func (h *handlers) poolNumOfVolumes(_ context.Context, _ *request, args *xdr.WithPool) (*xdr.WithCount, error) {
	volumes, err := h.poolVolumes(args.Pool)
	return &xdr.WithCount{Count: int32(len(volumes))}, err
}

func (h *handlers) poolListVolumes(_ context.Context, _ *request, args *xdr.StoragePoolListVolumesArgs) (*xdr.WithNames, error) {
	volumes, err := h.poolVolumes(args.Pool)
	if err != nil {
		return nil, err
	}
	ret := &xdr.WithNames{}
	for _, v := range volumes[:min(len(volumes), max(0, int(args.MaxNames)))] {
		ret.Names = append(ret.Names, v.Name)
	}
	return ret, nil
}

func (h *handlers) poolListAllVolumes(_ context.Context, _ *request, args *xdr.StoragePoolListAllVolumesArgs) (*xdr.StoragePoolListAllVolumesRet, error) {
	if err := checkFlags("STORAGE_POOL_LIST_ALL_VOLUMES", args.Flags, 0); err != nil {
		return nil, err
	}
	volumes, err := h.poolVolumes(args.Pool)
	if err != nil {
		return nil, err
	}
	ret := &xdr.StoragePoolListAllVolumesRet{Count: uint32(len(volumes))}
	for _, v := range volumes {
		if args.NeedResults {
			ret.Volumes = append(ret.Volumes, wireVolume(v))
		}
	}
	return ret, nil
}
