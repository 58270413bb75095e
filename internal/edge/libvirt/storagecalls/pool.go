package storagecalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
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

// Filter flags for listing pools, in pairs: with neither or both of a pair, every pool passes it.
const (
	poolListInactive    = 1 << 0
	poolListActive      = 1 << 1
	poolListPersistent  = 1 << 2
	poolListTransient   = 1 << 3
	poolListAutostart   = 1 << 4
	poolListNoAutostart = 1 << 5
	poolListAll         = 1<<20 - 1
)

// poolListTypes are the filter flags by type. Types that are not built have flags, too,
// and match no pool.
var poolListTypes = map[volume.Type]uint32{
	volume.Dir: 1 << 6, volume.FS: 1 << 7, volume.NetFS: 1 << 8, volume.Logical: 1 << 9, volume.Disk: 1 << 10,
}

const poolListAnyType = poolListAll &^ (1<<6 - 1)

// poolStates are libvirt's numbers of the states of pools.
var poolStates = map[volume.State]byte{volume.Inactive: 0, volume.Building: 1, volume.Running: 2, volume.Inaccessible: 4}

// PoolCalls read, change, start and stop storage pools.
func PoolCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcConnectListAllStoragePools, listAllPools)
	rpc.On(g, xdr.ProcConnectNumOfStoragePools, numOfPools)
	rpc.On(g, xdr.ProcConnectListStoragePools, listPools)
	rpc.On(g, xdr.ProcConnectNumOfDefinedStoragePools, numOfDefinedPools)
	rpc.On(g, xdr.ProcConnectListDefinedStoragePools, listDefinedPools)
	rpc.On(g, xdr.ProcConnectFindStoragePoolSources, findPoolSources)
	rpc.On(g, xdr.ProcConnectGetStoragePoolCapabilities, poolCapabilities)
	rpc.On(g, xdr.ProcStoragePoolLookupByName, poolLookupByName)
	rpc.On(g, xdr.ProcStoragePoolLookupByUUID, poolLookupByUUID)
	rpc.On(g, xdr.ProcStoragePoolLookupByVolume, poolLookupByVolume)
	rpc.On(g, xdr.ProcStoragePoolLookupByTargetPath, poolLookupByTarget)
	rpc.On(g, xdr.ProcStoragePoolDefineXML, poolDefine)
	rpc.On(g, xdr.ProcStoragePoolCreateXML, poolCreateXML)
	rpc.On(g, xdr.ProcStoragePoolCreate, poolCreate)
	rpc.On(g, xdr.ProcStoragePoolBuild, poolBuild)
	rpc.On(g, xdr.ProcStoragePoolDestroy, poolDestroy)
	rpc.On(g, xdr.ProcStoragePoolDelete, poolDelete)
	rpc.On(g, xdr.ProcStoragePoolUndefine, poolUndefine)
	rpc.On(g, xdr.ProcStoragePoolRefresh, poolRefresh)
	rpc.On(g, xdr.ProcStoragePoolGetInfo, poolInfo)
	rpc.On(g, xdr.ProcStoragePoolGetXMLDesc, poolXML)
	rpc.On(g, xdr.ProcStoragePoolGetAutostart, poolGetAutostart)
	rpc.On(g, xdr.ProcStoragePoolSetAutostart, poolSetAutostart)
	rpc.On(g, xdr.ProcStoragePoolIsActive, poolIsActive)
	rpc.On(g, xdr.ProcStoragePoolIsPersistent, poolIsPersistent)
	rpc.On(g, xdr.ProcStoragePoolNumOfVolumes, poolNumOfVolumes)
	rpc.On(g, xdr.ProcStoragePoolListVolumes, poolListVolumes)
	rpc.On(g, xdr.ProcStoragePoolListAllVolumes, poolListAllVolumes)
}

// FindPool finds the pool that a client names, by its UUID.
func FindPool(h *rpc.Handlers, p xdr.StoragePool) (*volume.Pool, error) {
	return h.Pools.ByUUID(rpc.FormatUUID(p.UUID))
}

// poolReply returns the reply of calls that return a pool, or the error.
func poolReply(p *volume.Pool, err error) (*xdr.WithPool, error) {
	if err != nil {
		return nil, err
	}
	named, err := wirePool(p)
	return &xdr.WithPool{Pool: named}, err
}

func wirePool(p *volume.Pool) (xdr.StoragePool, error) {
	id, err := rpc.ParseUUID(p.UUID())
	return xdr.StoragePool{Name: p.Name(), UUID: id}, err
}

func listAllPools(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectListAllStoragePoolsArgs) (*xdr.ConnectListAllStoragePoolsRet, error) {
	if err := rpc.CheckFlags("CONNECT_LIST_ALL_STORAGE_POOLS", args.Flags, poolListAll); err != nil {
		return nil, err
	}
	ret := &xdr.ConnectListAllStoragePoolsRet{}
	for _, p := range h.Pools.List() {
		if !poolMatches(p.View(), args.Flags) || !s.CanSeePool(p) {
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

// poolMatches reports whether a pool passes the filters. If any flag of a group is set, the
// pool must match one of the set flags.
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

// poolNames returns at most limit names of the active or of the inactive pools that the client may see.
func poolNames(h *rpc.Handlers, s *rpc.Session, active bool, limit int32) []string {
	var names []string
	for _, p := range h.Pools.List() {
		if p.View().Active() == active && len(names) < int(limit) && s.CanSeePool(p) {
			names = append(names, p.Name())
		}
	}
	return names
}

func numOfPools(_ context.Context, h *rpc.Handlers, s *rpc.Request, _ *rpc.Void) (*xdr.WithCount, error) {
	return &xdr.WithCount{Count: int32(len(poolNames(h, s.Session, true, xdr.MaxStoragePoolList)))}, nil
}

func listPools(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithMaxNames) (*xdr.WithNames, error) {
	return &xdr.WithNames{Names: poolNames(h, s.Session, true, args.MaxNames)}, nil
}

func numOfDefinedPools(_ context.Context, h *rpc.Handlers, s *rpc.Request, _ *rpc.Void) (*xdr.WithCount, error) {
	return &xdr.WithCount{Count: int32(len(poolNames(h, s.Session, false, xdr.MaxStoragePoolList)))}, nil
}

func listDefinedPools(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithMaxNames) (*xdr.WithNames, error) {
	return &xdr.WithNames{Names: poolNames(h, s.Session, false, args.MaxNames)}, nil
}

func findPoolSources(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.ConnectFindStoragePoolSourcesArgs) (*xdr.WithXML, error) {
	if err := rpc.CheckFlags("CONNECT_FIND_STORAGE_POOL_SOURCES", args.Flags, 0); err != nil {
		return nil, err
	}
	spec := "<source/>"
	if args.SourceSpec != nil && *args.SourceSpec != "" {
		spec = *args.SourceSpec
	}
	doc, err := volume.FindSources(ctx, volume.Type(args.Type), spec)
	return &xdr.WithXML{XML: doc}, err
}

func poolCapabilities(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithFlags) (*xdr.WithCapabilities, error) {
	if err := rpc.CheckFlags("CONNECT_GET_STORAGE_POOL_CAPABILITIES", args.Flags, 0); err != nil {
		return nil, err
	}
	doc, err := volume.Capabilities()
	return &xdr.WithCapabilities{Capabilities: doc}, err
}

func poolLookupByName(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithName) (*xdr.WithPool, error) {
	return poolReply(h.Pools.ByName(args.Name))
}

func poolLookupByUUID(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithUUID) (*xdr.WithPool, error) {
	return poolReply(h.Pools.ByUUID(rpc.FormatUUID(args.UUID)))
}

func poolLookupByVolume(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithVolume) (*xdr.WithPool, error) {
	return poolReply(h.Pools.ByName(args.Volume.Pool))
}

func poolLookupByTarget(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithPath) (*xdr.WithPool, error) {
	return poolReply(h.Pools.ByTarget(args.Path))
}

func poolDefine(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithXMLFlags) (*xdr.WithPool, error) {
	if err := rpc.CheckFlags("STORAGE_POOL_DEFINE_XML", args.Flags, poolDefineValidate); err != nil {
		return nil, err
	}
	return poolReply(h.Pools.Define(ctx, s.Scope, args.XML, args.Flags&poolDefineValidate != 0))
}

func poolCreateXML(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithXMLFlags) (*xdr.WithPool, error) {
	if err := rpc.CheckFlags("STORAGE_POOL_CREATE_XML", args.Flags, poolCreateAll); err != nil {
		return nil, err
	}
	build, err := buildMode(args.Flags)
	if err != nil {
		return nil, err
	}
	p, err := h.Pools.Create(ctx, s.Scope, args.XML, false, build)
	return poolReply(p, rpc.StorageError(err))
}

func poolCreate(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithPoolFlags) (*rpc.Void, error) {
	if err := rpc.CheckFlags("STORAGE_POOL_CREATE", args.Flags, poolCreateAll); err != nil {
		return nil, err
	}
	build, err := buildMode(args.Flags)
	if err != nil {
		return nil, err
	}
	return onPool(h, args.Pool, func(p *volume.Pool) error { return rpc.StorageError(p.Start(ctx, s.Scope, build)) })
}

// buildMode returns how to build a pool, from the flags for creating one.
func buildMode(flags uint32) (volume.Build, error) {
	switch overwrite, keep := flags&poolCreateWithBuildOverwrite != 0, flags&poolCreateWithBuildNoOverwrite != 0; {
	case overwrite && keep:
		return 0, errOverwriteFlags()
	case overwrite:
		return volume.Overwrite, nil
	case keep:
		return volume.KeepExisting, nil
	case flags&poolCreateWithBuild != 0:
		return volume.MakeTarget, nil
	}
	return volume.NoBuild, nil
}

func poolBuild(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithPoolFlags) (*rpc.Void, error) {
	if err := rpc.CheckFlags("STORAGE_POOL_BUILD", args.Flags, poolBuildOverwrite|poolBuildNoOverwrite); err != nil {
		return nil, err
	}
	mode := volume.MakeTarget
	switch args.Flags {
	case poolBuildOverwrite:
		mode = volume.Overwrite
	case poolBuildNoOverwrite:
		mode = volume.KeepExisting
	case poolBuildOverwrite | poolBuildNoOverwrite:
		return nil, errOverwriteFlags()
	}
	return onPool(h, args.Pool, func(p *volume.Pool) error { return p.Build(ctx, s.Scope, mode) })
}

func errOverwriteFlags() error {
	return fault.New(fault.Invalid, fault.Call, "the flags overwrite and no-overwrite exclude each other")
}

// onPool finds the pool that a client names and runs a function on it.
func onPool(h *rpc.Handlers, named xdr.StoragePool, do func(*volume.Pool) error) (*rpc.Void, error) {
	p, err := FindPool(h, named)
	if err != nil {
		return nil, err
	}
	return nil, do(p)
}

func poolDestroy(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithPool) (*rpc.Void, error) {
	return onPool(h, args.Pool, func(p *volume.Pool) error { return p.Stop(ctx, s.Scope) })
}

func poolDelete(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithPoolFlags) (*rpc.Void, error) {
	if err := rpc.CheckFlags("STORAGE_POOL_DELETE", args.Flags, 0); err != nil {
		return nil, err
	}
	return onPool(h, args.Pool, func(p *volume.Pool) error { return p.Delete(ctx, s.Scope) })
}

func poolUndefine(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithPool) (*rpc.Void, error) {
	return onPool(h, args.Pool, func(p *volume.Pool) error { return p.Undefine(ctx, s.Scope) })
}

func poolRefresh(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithPoolFlags) (*rpc.Void, error) {
	if err := rpc.CheckFlags("STORAGE_POOL_REFRESH", args.Flags, 0); err != nil {
		return nil, err
	}
	return onPool(h, args.Pool, func(p *volume.Pool) error { return p.Refresh(ctx, s.Scope) })
}

func poolInfo(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithPool) (*xdr.StoragePoolGetInfoRet, error) {
	p, err := FindPool(h, args.Pool)
	if err != nil {
		return nil, err
	}
	v := p.Fresh(ctx)
	return &xdr.StoragePoolGetInfoRet{
		State: poolStates[v.State], Capacity: v.Capacity, Allocation: v.Allocation, Available: v.Available,
	}, nil
}

func poolXML(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithPoolFlags) (*xdr.WithXML, error) {
	if err := rpc.CheckFlags("STORAGE_POOL_GET_XML_DESC", args.Flags, poolXMLInactive); err != nil {
		return nil, err
	}
	p, err := FindPool(h, args.Pool)
	if err != nil {
		return nil, err
	}
	p.Fresh(ctx)
	doc, err := rpc.RunFair(ctx, func() (string, error) { return p.XML(args.Flags&poolXMLInactive != 0) })
	return &xdr.WithXML{XML: doc}, err
}

func poolGetAutostart(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithPool) (*xdr.WithAutostart, error) {
	p, err := FindPool(h, args.Pool)
	if err != nil {
		return nil, err
	}
	return &xdr.WithAutostart{Autostart: p.View().Autostart}, nil
}

func poolSetAutostart(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.StoragePoolSetAutostartArgs) (*rpc.Void, error) {
	return onPool(h, args.Pool, func(p *volume.Pool) error {
		err := p.SetAutostart(ctx, s.Scope, args.Autostart)
		if err != nil && !p.View().Persistent {
			return rpc.WithCode(rpc.CodeInternal, err)
		}
		return err
	})
}

func poolIsActive(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithPool) (*xdr.WithActive, error) {
	p, err := FindPool(h, args.Pool)
	if err != nil {
		return nil, err
	}
	return &xdr.WithActive{Active: p.View().Active()}, nil
}

func poolIsPersistent(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithPool) (*xdr.WithPersistent, error) {
	p, err := FindPool(h, args.Pool)
	if err != nil {
		return nil, err
	}
	return &xdr.WithPersistent{Persistent: p.View().Persistent}, nil
}

// poolVolumes returns the volumes of an active pool.
func poolVolumes(h *rpc.Handlers, named xdr.StoragePool) ([]*volume.Volume, error) {
	p, err := FindPool(h, named)
	if err != nil {
		return nil, err
	}
	return p.Volumes()
}

func poolNumOfVolumes(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithPool) (*xdr.WithCount, error) {
	volumes, err := poolVolumes(h, args.Pool)
	return &xdr.WithCount{Count: int32(len(volumes))}, err
}

func poolListVolumes(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.StoragePoolListVolumesArgs) (*xdr.WithNames, error) {
	volumes, err := poolVolumes(h, args.Pool)
	if err != nil {
		return nil, err
	}
	ret := &xdr.WithNames{}
	for _, v := range volumes[:min(len(volumes), max(0, int(args.MaxNames)))] {
		ret.Names = append(ret.Names, v.Name)
	}
	return ret, nil
}

func poolListAllVolumes(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.StoragePoolListAllVolumesArgs) (*xdr.StoragePoolListAllVolumesRet, error) {
	if err := rpc.CheckFlags("STORAGE_POOL_LIST_ALL_VOLUMES", args.Flags, 0); err != nil {
		return nil, err
	}
	volumes, err := poolVolumes(h, args.Pool)
	if err != nil {
		return nil, err
	}
	ret := &xdr.StoragePoolListAllVolumesRet{Count: uint32(len(volumes))}
	for _, v := range volumes {
		if args.NeedResults {
			ret.Volumes = append(ret.Volumes, WireVolume(v))
		}
	}
	return ret, nil
}
