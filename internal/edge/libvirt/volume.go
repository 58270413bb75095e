package libvirt

import (
	"context"
	"errors"
	"io"

	"github.com/lodge-kvm/lodge/internal/base/fault"
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

	volumeStreamSparse = 1 // of uploads and downloads alike
)

// wipeAlgorithms are libvirt's, by number. Two are built.
var wipeAlgorithms = []string{"zero", "nnsa", "dod", "bsi", "gutmann", "schneier", "pfitzner7", "pfitzner33", "random", "trim"}

const (
	wipeZero = 0
	wipeTrim = 9
)

// volumeTypes are libvirt's numbers of kinds.
var volumeTypes = map[volume.Kind]byte{volume.File: 0, volume.Block: 1, volume.Directory: 2}

// volumeCalls read, create, delete and transfer storage volumes.
func volumeCalls(g group) {
	on(g, xdr.ProcStorageVolLookupByName, (*handlers).volumeLookupByName)
	on(g, xdr.ProcStorageVolLookupByKey, (*handlers).volumeLookupByKey)
	on(g, xdr.ProcStorageVolLookupByPath, (*handlers).volumeLookupByPath)
	on(g, xdr.ProcStorageVolCreateXML, (*handlers).volumeCreate)
	on(g, xdr.ProcStorageVolCreateXMLFrom, (*handlers).volumeClone)
	on(g, xdr.ProcStorageVolDelete, (*handlers).volumeDelete)
	on(g, xdr.ProcStorageVolResize, (*handlers).volumeResize)
	on(g, xdr.ProcStorageVolWipe, (*handlers).volumeWipe)
	on(g, xdr.ProcStorageVolWipePattern, (*handlers).volumeWipePattern)
	on(g, xdr.ProcStorageVolGetInfo, (*handlers).volumeInfo)
	on(g, xdr.ProcStorageVolGetInfoFlags, (*handlers).volumeInfoFlags)
	on(g, xdr.ProcStorageVolGetXMLDesc, (*handlers).volumeXML)
	on(g, xdr.ProcStorageVolGetPath, (*handlers).volumePath)
	onStream(g, xdr.ProcStorageVolUpload, (*handlers).volumeUpload)
	onStream(g, xdr.ProcStorageVolDownload, (*handlers).volumeDownload)
}

// wireVolume gives a volume's pool, name and key as they travel.
func wireVolume(v *volume.Volume) xdr.StorageVol {
	return xdr.StorageVol{Pool: v.Pool, Name: v.Name, Key: v.Key()}
}

// volumeReply gives a volume as calls return it, or passes an error on.
func volumeReply(v *volume.Volume, err error) (*xdr.WithVolume, error) {
	if err != nil {
		return nil, err
	}
	return &xdr.WithVolume{Volume: wireVolume(v)}, nil
}

// poolOf finds the pool that a volume names.
func (h *handlers) poolOf(v xdr.StorageVol) (*volume.Pool, error) { return h.Pools.ByName(v.Pool) }

// volume finds a volume and refreshes its recorded state.
func (h *handlers) volume(ctx context.Context, named xdr.StorageVol) (*volume.Volume, error) {
	p, err := h.poolOf(named)
	if err != nil {
		return nil, err
	}
	return p.FreshVolume(ctx, named.Name)
}

func (h *handlers) volumeLookupByName(_ context.Context, _ *request, args *xdr.StorageVolLookupByNameArgs) (*xdr.WithVolume, error) {
	p, err := h.pool(args.Pool)
	if err != nil {
		return nil, err
	}
	return volumeReply(p.Volume(args.Name))
}

func (h *handlers) volumeLookupByKey(_ context.Context, _ *request, args *xdr.StorageVolLookupByKeyArgs) (*xdr.WithVolume, error) {
	_, v, err := h.Pools.ByPath(args.Key)
	return volumeReply(v, err)
}

func (h *handlers) volumeLookupByPath(_ context.Context, _ *request, args *xdr.WithPath) (*xdr.WithVolume, error) {
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

func (h *handlers) volumeCreate(ctx context.Context, s *request, args *xdr.StorageVolCreateXMLArgs) (*xdr.WithVolume, error) {
	if err := checkFlags("STORAGE_VOL_CREATE_XML", args.Flags, volumeCreateAll); err != nil {
		return nil, err
	}
	p, err := h.pool(args.Pool)
	if err != nil {
		return nil, err
	}
	return volumeReply(p.CreateVolume(ctx, s.scope, args.XML, volumeCreateOptions(args.Flags)))
}

func (h *handlers) volumeClone(ctx context.Context, s *request, args *xdr.StorageVolCreateXMLFromArgs) (*xdr.WithVolume, error) {
	if err := checkFlags("STORAGE_VOL_CREATE_XML_FROM", args.Flags, volumeCreateAll); err != nil {
		return nil, err
	}
	p, err := h.pool(args.Pool)
	if err != nil {
		return nil, err
	}
	from, err := h.poolOf(args.CloneVolume)
	if err != nil {
		return nil, err
	}
	return volumeReply(p.CloneVolume(ctx, s.scope, args.XML, from, args.CloneVolume.Name, volumeCreateOptions(args.Flags)))
}

func (h *handlers) volumeDelete(ctx context.Context, s *request, args *xdr.WithVolumeFlags) (*void, error) {
	if err := checkFlags("STORAGE_VOL_DELETE", args.Flags, 0); err != nil {
		return nil, err
	}
	p, err := h.poolOf(args.Volume)
	if err != nil {
		return nil, err
	}
	return nil, p.DeleteVolume(ctx, s.scope, args.Volume.Name)
}

func (h *handlers) volumeResize(ctx context.Context, s *request, args *xdr.StorageVolResizeArgs) (*void, error) {
	if err := checkFlags("STORAGE_VOL_RESIZE", args.Flags, volumeResizeAll); err != nil {
		return nil, err
	}
	p, err := h.poolOf(args.Volume)
	if err != nil {
		return nil, err
	}
	return nil, p.ResizeVolume(ctx, s.scope, args.Volume.Name, args.Capacity, volume.ResizeOptions{
		Allocate: args.Flags&volumeResizeAllocate != 0,
		Delta:    args.Flags&volumeResizeDelta != 0,
		Shrink:   args.Flags&volumeResizeShrink != 0,
	})
}

func (h *handlers) volumeWipe(ctx context.Context, s *request, args *xdr.WithVolumeFlags) (*void, error) {
	return h.volumeWipePattern(ctx, s, &xdr.StorageVolWipePatternArgs{Volume: args.Volume, Flags: args.Flags, Algorithm: wipeZero})
}

func (h *handlers) volumeWipePattern(ctx context.Context, s *request, args *xdr.StorageVolWipePatternArgs) (*void, error) {
	if err := checkFlags("STORAGE_VOL_WIPE_PATTERN", args.Flags, 0); err != nil {
		return nil, err
	}
	switch {
	case uint64(args.Algorithm) >= uint64(len(wipeAlgorithms)):
		return nil, fault.New(fault.Invalid, fault.Call, "wipe algorithm %d is not known", args.Algorithm)
	case args.Algorithm != wipeZero && args.Algorithm != wipeTrim:
		return nil, fault.New(fault.Unsupported, fault.Call, "wipe algorithm %s is not built: zero and trim are", wipeAlgorithms[args.Algorithm])
	}
	p, err := h.poolOf(args.Volume)
	if err != nil {
		return nil, err
	}
	return nil, p.WipeVolume(ctx, s.scope, args.Volume.Name, args.Algorithm == wipeTrim)
}

func (h *handlers) volumeInfo(ctx context.Context, s *request, args *xdr.WithVolume) (*xdr.WithTypeCapacityAllocation, error) {
	return h.volumeInfoFlags(ctx, s, &xdr.WithVolumeFlags{Volume: args.Volume})
}

func (h *handlers) volumeInfoFlags(ctx context.Context, _ *request, args *xdr.WithVolumeFlags) (*xdr.WithTypeCapacityAllocation, error) {
	if err := checkFlags("STORAGE_VOL_GET_INFO_FLAGS", args.Flags, volumeInfoPhysical); err != nil {
		return nil, err
	}
	v, err := h.volume(ctx, args.Volume)
	if err != nil {
		return nil, err
	}
	info := &xdr.WithTypeCapacityAllocation{Type: volumeTypes[v.Kind], Capacity: v.Virtual, Allocation: v.Allocated}
	if args.Flags&volumeInfoPhysical != 0 {
		info.Allocation = v.Physical
	}
	return info, nil
}

func (h *handlers) volumeXML(ctx context.Context, _ *request, args *xdr.WithVolumeFlags) (*xdr.WithXML, error) {
	if err := checkFlags("STORAGE_VOL_GET_XML_DESC", args.Flags, 0); err != nil {
		return nil, err
	}
	v, err := h.volume(ctx, args.Volume)
	if err != nil {
		return nil, err
	}
	doc, err := inTurn(ctx, v.XML)
	return &xdr.WithXML{XML: doc}, err
}

func (h *handlers) volumePath(_ context.Context, _ *request, args *xdr.WithVolume) (*xdr.WithName, error) {
	p, err := h.poolOf(args.Volume)
	if err != nil {
		return nil, err
	}
	v, err := p.Volume(args.Volume.Name)
	if err != nil {
		return nil, err
	}
	return &xdr.WithName{Name: v.Path}, nil
}

func (h *handlers) volumeUpload(ctx context.Context, s *request, args *xdr.WithVolumeOffsetLengthFlags) (*void, streamBody, error) {
	if err := checkFlags("STORAGE_VOL_UPLOAD", args.Flags, volumeStreamSparse); err != nil {
		return nil, nil, err
	}
	p, err := h.poolOf(args.Volume)
	if err != nil {
		return nil, nil, err
	}
	up, err := p.Upload(ctx, s.scope, args.Volume.Name, args.Offset, args.Length)
	if err != nil {
		return nil, nil, err
	}
	move := receiveDense
	if args.Flags&volumeStreamSparse != 0 {
		move = receiveSparse
	}
	return nil, func(_ context.Context, st *stream) error {
		st.idle = st.client.server.limits.idle
		if err := move(up, st); err != nil {
			up.Abort()
			return err
		}
		return up.Close()
	}, nil
}

func receiveDense(up *volume.Upload, st *stream) error {
	_, err := io.CopyBuffer(up, struct{ io.Reader }{st}, make([]byte, xdr.StreamData))
	return err
}

func receiveSparse(up *volume.Upload, st *stream) error {
	buf := make([]byte, xdr.StreamData)
	for {
		hole, err := st.next()
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

func (h *handlers) volumeDownload(ctx context.Context, s *request, args *xdr.WithVolumeOffsetLengthFlags) (*void, streamBody, error) {
	if err := checkFlags("STORAGE_VOL_DOWNLOAD", args.Flags, volumeStreamSparse); err != nil {
		return nil, nil, err
	}
	p, err := h.poolOf(args.Volume)
	if err != nil {
		return nil, nil, err
	}
	down, err := p.Download(ctx, s.scope, args.Volume.Name, args.Offset, args.Length)
	if err != nil {
		return nil, nil, err
	}
	move := sendDense
	if args.Flags&volumeStreamSparse != 0 {
		move = sendSparse
	}
	return nil, func(_ context.Context, st *stream) error {
		defer down.Close()
		return move(st, down)
	}, nil
}

func sendDense(st *stream, down *volume.Download) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{st}, down, make([]byte, xdr.StreamData))
	return err
}

func sendSparse(st *stream, down *volume.Download) error {
	buf := make([]byte, xdr.StreamData)
	for {
		hole, n, err := down.Section()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case hole:
			if err := st.writeHole(n); err != nil {
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
