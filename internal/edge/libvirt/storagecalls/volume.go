package storagecalls

import (
	"context"
	"errors"
	"io"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/host/volume"
)

// Flags of volume calls.
const (
	volumeCreatePreallocate = 1
	volumeCreateReflink     = 2
	volumeCreateValidate    = 4
	volumeCreateAll         = 7

	volumeResizeAllocate = 1
	volumeResizeDelta    = 2
	volumeResizeShrink   = 4
	volumeResizeAll      = 7

	volumeInfoPhysical = 1

	VolumeStreamSparse = 1 // of uploads and downloads
)

// wipeAlgorithms are libvirt's, by number. Zero and trim are built.
var wipeAlgorithms = []string{"zero", "nnsa", "dod", "bsi", "gutmann", "schneier", "pfitzner7", "pfitzner33", "random", "trim"}

const (
	wipeZero = 0
	wipeTrim = 9
)

// volumeTypes are libvirt's numbers of the types of volumes.
var volumeTypes = map[volume.Kind]byte{volume.File: 0, volume.Block: 1, volume.Directory: 2}

// VolumeCalls read, create, delete and transfer storage volumes.
func VolumeCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcStorageVolLookupByName, volumeLookupByName)
	rpc.On(g, xdr.ProcStorageVolLookupByKey, volumeLookupByKey)
	rpc.On(g, xdr.ProcStorageVolLookupByPath, volumeLookupByPath)
	rpc.On(g, xdr.ProcStorageVolCreateXML, volumeCreate)
	rpc.On(g, xdr.ProcStorageVolCreateXMLFrom, volumeClone)
	rpc.On(g, xdr.ProcStorageVolDelete, volumeDelete)
	rpc.On(g, xdr.ProcStorageVolResize, volumeResize)
	rpc.On(g, xdr.ProcStorageVolWipe, volumeWipe)
	rpc.On(g, xdr.ProcStorageVolWipePattern, volumeWipePattern)
	rpc.On(g, xdr.ProcStorageVolGetInfo, volumeInfo)
	rpc.On(g, xdr.ProcStorageVolGetInfoFlags, volumeInfoFlags)
	rpc.On(g, xdr.ProcStorageVolGetXMLDesc, volumeXML)
	rpc.On(g, xdr.ProcStorageVolGetPath, volumePath)
	rpc.OnStream(g, xdr.ProcStorageVolUpload, volumeUpload)
	rpc.OnStream(g, xdr.ProcStorageVolDownload, volumeDownload)
}

// WireVolume returns a volume's pool, name and key as messages have them.
func WireVolume(v *volume.Volume) xdr.StorageVol {
	return xdr.StorageVol{Pool: v.Pool, Name: v.Name, Key: v.Key()}
}

// volumeReply returns the reply of calls that return a volume, or the error.
func volumeReply(v *volume.Volume, err error) (*xdr.WithVolume, error) {
	if err != nil {
		return nil, err
	}
	return &xdr.WithVolume{Volume: WireVolume(v)}, nil
}

// poolOf finds the pool of the volume that a client names.
func poolOf(h *rpc.Handlers, v xdr.StorageVol) (*volume.Pool, error) { return h.Pools.ByName(v.Pool) }

// findVolume finds the volume that a client names, and reads its present state if the file system answers at once.
func findVolume(ctx context.Context, h *rpc.Handlers, named xdr.StorageVol) (*volume.Volume, error) {
	p, err := poolOf(h, named)
	if err != nil {
		return nil, err
	}
	return p.FreshVolume(ctx, named.Name)
}

func volumeLookupByName(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.StorageVolLookupByNameArgs) (*xdr.WithVolume, error) {
	p, err := FindPool(h, args.Pool)
	if err != nil {
		return nil, err
	}
	return volumeReply(p.Volume(args.Name))
}

func volumeLookupByKey(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.StorageVolLookupByKeyArgs) (*xdr.WithVolume, error) {
	_, v, err := h.Pools.ByPath(args.Key)
	return volumeReply(v, err)
}

func volumeLookupByPath(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithPath) (*xdr.WithVolume, error) {
	_, v, err := h.Pools.ByPath(args.Path)
	return volumeReply(v, err)
}

func volumeCreateOptions(flags uint32) volume.CreateOptions {
	return volume.CreateOptions{
		Validate: flags&volumeCreateValidate != 0,
		Metadata: flags&volumeCreatePreallocate != 0,
		Reflink:  flags&volumeCreateReflink != 0,
	}
}

func volumeCreate(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.StorageVolCreateXMLArgs) (*xdr.WithVolume, error) {
	if err := rpc.CheckFlags("STORAGE_VOL_CREATE_XML", args.Flags, volumeCreateAll); err != nil {
		return nil, err
	}
	p, err := FindPool(h, args.Pool)
	if err != nil {
		return nil, err
	}
	return volumeReply(p.CreateVolume(ctx, s.Scope, args.XML, volumeCreateOptions(args.Flags)))
}

func volumeClone(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.StorageVolCreateXMLFromArgs) (*xdr.WithVolume, error) {
	if err := rpc.CheckFlags("STORAGE_VOL_CREATE_XML_FROM", args.Flags, volumeCreateAll); err != nil {
		return nil, err
	}
	p, err := FindPool(h, args.Pool)
	if err != nil {
		return nil, err
	}
	from, err := poolOf(h, args.CloneVolume)
	if err != nil {
		return nil, err
	}
	return volumeReply(p.CloneVolume(ctx, s.Scope, args.XML, from, args.CloneVolume.Name, volumeCreateOptions(args.Flags)))
}

func volumeDelete(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithVolumeFlags) (*rpc.Void, error) {
	if err := rpc.CheckFlags("STORAGE_VOL_DELETE", args.Flags, 0); err != nil {
		return nil, err
	}
	p, err := poolOf(h, args.Volume)
	if err != nil {
		return nil, err
	}
	return nil, p.DeleteVolume(ctx, s.Scope, args.Volume.Name)
}

func volumeResize(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.StorageVolResizeArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("STORAGE_VOL_RESIZE", args.Flags, volumeResizeAll); err != nil {
		return nil, err
	}
	p, err := poolOf(h, args.Volume)
	if err != nil {
		return nil, err
	}
	return nil, p.ResizeVolume(ctx, s.Scope, args.Volume.Name, args.Capacity, volume.ResizeOptions{
		Allocate: args.Flags&volumeResizeAllocate != 0,
		Delta:    args.Flags&volumeResizeDelta != 0,
		Shrink:   args.Flags&volumeResizeShrink != 0,
	})
}

func volumeWipe(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithVolumeFlags) (*rpc.Void, error) {
	return volumeWipePattern(ctx, h, s, &xdr.StorageVolWipePatternArgs{Volume: args.Volume, Flags: args.Flags, Algorithm: wipeZero})
}

func volumeWipePattern(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.StorageVolWipePatternArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("STORAGE_VOL_WIPE_PATTERN", args.Flags, 0); err != nil {
		return nil, err
	}
	switch {
	case uint64(args.Algorithm) >= uint64(len(wipeAlgorithms)):
		return nil, fault.New(fault.Invalid, fault.Call, "wipe algorithm %d is not known", args.Algorithm)
	case args.Algorithm != wipeZero && args.Algorithm != wipeTrim:
		return nil, fault.New(fault.Unsupported, fault.Call, "wipe algorithm %s is not built: zero and trim are", wipeAlgorithms[args.Algorithm])
	}
	p, err := poolOf(h, args.Volume)
	if err != nil {
		return nil, err
	}
	return nil, p.WipeVolume(ctx, s.Scope, args.Volume.Name, args.Algorithm == wipeTrim)
}

func volumeInfo(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithVolume) (*xdr.WithTypeCapacityAllocation, error) {
	return volumeInfoFlags(ctx, h, s, &xdr.WithVolumeFlags{Volume: args.Volume})
}

func volumeInfoFlags(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithVolumeFlags) (*xdr.WithTypeCapacityAllocation, error) {
	if err := rpc.CheckFlags("STORAGE_VOL_GET_INFO_FLAGS", args.Flags, volumeInfoPhysical); err != nil {
		return nil, err
	}
	v, err := findVolume(ctx, h, args.Volume)
	if err != nil {
		return nil, err
	}
	info := &xdr.WithTypeCapacityAllocation{Type: volumeTypes[v.Kind], Capacity: v.Virtual, Allocation: v.Allocated}
	if args.Flags&volumeInfoPhysical != 0 {
		info.Allocation = v.Physical
	}
	return info, nil
}

func volumeXML(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithVolumeFlags) (*xdr.WithXML, error) {
	if err := rpc.CheckFlags("STORAGE_VOL_GET_XML_DESC", args.Flags, 0); err != nil {
		return nil, err
	}
	v, err := findVolume(ctx, h, args.Volume)
	if err != nil {
		return nil, err
	}
	doc, err := rpc.RunFair(ctx, v.XML)
	return &xdr.WithXML{XML: doc}, err
}

func volumePath(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithVolume) (*xdr.WithName, error) {
	p, err := poolOf(h, args.Volume)
	if err != nil {
		return nil, err
	}
	v, err := p.Volume(args.Volume.Name)
	if err != nil {
		return nil, err
	}
	return &xdr.WithName{Name: v.Path}, nil
}

func volumeUpload(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithVolumeOffsetLengthFlags) (*rpc.Void, rpc.StreamBody, error) {
	if err := rpc.CheckFlags("STORAGE_VOL_UPLOAD", args.Flags, VolumeStreamSparse); err != nil {
		return nil, nil, err
	}
	p, err := poolOf(h, args.Volume)
	if err != nil {
		return nil, nil, err
	}
	up, err := p.Upload(ctx, s.Scope, args.Volume.Name, args.Offset, args.Length)
	if err != nil {
		return nil, nil, err
	}
	move := receiveDense
	if args.Flags&VolumeStreamSparse != 0 {
		move = receiveSparse
	}
	return nil, func(_ context.Context, st *rpc.Stream) error {
		st.Idle = st.Client.Server.Limits.UploadIdle
		if err := move(up, st); err != nil {
			up.Abort()
			return err
		}
		return up.Close()
	}, nil
}

func receiveDense(up *volume.Upload, st *rpc.Stream) error {
	_, err := io.CopyBuffer(up, struct{ io.Reader }{st}, make([]byte, xdr.StreamData))
	return err
}

func receiveSparse(up *volume.Upload, st *rpc.Stream) error {
	buf := make([]byte, xdr.StreamData)
	for {
		hole, err := st.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case hole > 0:
			if err := up.Hole(hole); err != nil {
				return err
			}
			continue
		}
		n, err := st.Read(buf)
		if err != nil {
			return err
		}
		if _, err := up.Write(buf[:n]); err != nil {
			return err
		}
	}
}

func volumeDownload(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithVolumeOffsetLengthFlags) (*rpc.Void, rpc.StreamBody, error) {
	if err := rpc.CheckFlags("STORAGE_VOL_DOWNLOAD", args.Flags, VolumeStreamSparse); err != nil {
		return nil, nil, err
	}
	p, err := poolOf(h, args.Volume)
	if err != nil {
		return nil, nil, err
	}
	down, err := p.Download(ctx, s.Scope, args.Volume.Name, args.Offset, args.Length)
	if err != nil {
		return nil, nil, err
	}
	move := sendDense
	if args.Flags&VolumeStreamSparse != 0 {
		move = sendSparse
	}
	return nil, func(_ context.Context, st *rpc.Stream) error {
		defer down.Close()
		return move(st, down)
	}, nil
}

func sendDense(st *rpc.Stream, down *volume.Download) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{st}, down, make([]byte, xdr.StreamData))
	return err
}

func sendSparse(st *rpc.Stream, down *volume.Download) error {
	buf := make([]byte, xdr.StreamData)
	for {
		hole, n, err := down.Section()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case hole:
			if err := st.WriteHole(n); err != nil {
				return err
			}
			down.Skip(n)
			continue
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{st}, io.LimitReader(down, n), buf); err != nil {
			return err
		}
	}
}
