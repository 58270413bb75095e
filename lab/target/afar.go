package target

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"path"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/node"
	"github.com/lodge-kvm/lodge/xdr"
)

// Away says whether the daemon is reached by something else than a socket of this
// host: then nothing of its host is seen but by its calls, and no file is shared.
func (t *Target) Away() bool { return t.away }

// Machine is what is known of the host of a daemon that is away.
func (t *Target) Machine() machine.Host { return t.machine }

// Counters are what the daemon's host has counted, as the daemon tells.
func (t *Target) Counters(ctx context.Context) (map[string]float64, error) {
	return node.Counters(ctx, t)
}

// Call makes a call within the lab's patience.
func (t *Target) Call(ctx context.Context, proc int32, args, ret xdr.Message) error {
	return t.call(ctx, proc, args, ret)
}

// MemoryAvailable is that of the host of a daemon that is away, in bytes.
func (t *Target) MemoryAvailable(ctx context.Context) (uint64, error) {
	_, available, err := node.Memory(ctx, t)
	return available, err
}

// DiskAvailable is what is free for guests at a daemon that is away, in bytes, below
// a directory of its host, with the image there.
func (t *Target) DiskAvailable(ctx context.Context, directory string, image Image) (free uint64, err error) {
	err = t.inStore(ctx, directory, func(s *imageStore) error {
		var info xdr.StoragePoolGetInfoRet
		if err := t.call(ctx, xdr.ProcStoragePoolGetInfo, &xdr.StoragePoolGetInfoArgs{Pool: s.pool}, &info); err != nil {
			return err
		}
		missing, err := s.missing(ctx, image)
		free = info.Available - min(missing, info.Available)
		return err
	})
	return free, err
}

// poolBuild has the daemon make a pool's directory, with those above it.
const poolBuild = 1

// directory is that of a run's files at a daemon that is away: one that can be
// removed when it is empty, which is all that a daemon does.
func directoryAfar(directory, run string, number int) string {
	return path.Join(directory, fmt.Sprintf("%s-%d", run, number))
}

func poolDocument(name, dir string) string {
	return fmt.Sprintf("<pool type='dir'>\n  <name>%s</name>\n  <target><path>%s</path></target>\n</pool>\n", name, escape(dir))
}

// volumes lists what is in a pool now.
func (t *Target) volumes(ctx context.Context, pool xdr.StoragePool) ([]xdr.StorageVol, error) {
	if err := t.call(ctx, xdr.ProcStoragePoolRefresh, &xdr.StoragePoolRefreshArgs{Pool: pool}, nil); err != nil {
		return nil, err
	}
	var ret xdr.StoragePoolListAllVolumesRet
	err := t.call(ctx, xdr.ProcStoragePoolListAllVolumes, &xdr.StoragePoolListAllVolumesArgs{Pool: pool, NeedResults: true}, &ret)
	return ret.Volumes, err
}

// removePool takes a pool away with all that is in it, and its directory.
func (t *Target) removePool(ctx context.Context, pool xdr.StoragePool) error {
	all, err := t.volumes(ctx, pool)
	for _, v := range all {
		err = errors.Join(err, t.call(ctx, xdr.ProcStorageVolDelete, &xdr.StorageVolDeleteArgs{Volume: v}, nil))
	}
	dir, failed := t.directoryOf(ctx, pool)
	err = errors.Join(err, failed, t.call(ctx, xdr.ProcStoragePoolDestroy, &xdr.StoragePoolDestroyArgs{Pool: pool}, nil))
	if err != nil {
		return err
	}
	return t.removeDirectory(ctx, pool.Name, dir)
}

// directoryOf is where a pool's files are.
func (t *Target) directoryOf(ctx context.Context, pool xdr.StoragePool) (string, error) {
	var ret xdr.StoragePoolGetXMLDescRet
	if err := t.call(ctx, xdr.ProcStoragePoolGetXMLDesc, &xdr.StoragePoolGetXMLDescArgs{Pool: pool}, &ret); err != nil {
		return "", err
	}
	var doc struct {
		Path string `xml:"target>path"`
	}
	err := xml.Unmarshal([]byte(ret.XML), &doc)
	return doc.Path, fault.Wrap(err, fault.Failed, fault.XML, "cannot read the definition of pool %s", pool.Name)
}

// removeDirectory has the daemon remove an empty directory. It does so for pools that
// are defined and do not run, and so there is one for a moment.
func (t *Target) removeDirectory(ctx context.Context, name, dir string) error {
	var ret xdr.StoragePoolDefineXMLRet
	if err := t.call(ctx, xdr.ProcStoragePoolDefineXML, &xdr.StoragePoolDefineXMLArgs{XML: poolDocument(name, dir)}, &ret); err != nil {
		return err
	}
	return errors.Join(
		t.call(ctx, xdr.ProcStoragePoolDelete, &xdr.StoragePoolDeleteArgs{Pool: ret.Pool}, nil),
		t.call(ctx, xdr.ProcStoragePoolUndefine, &xdr.StoragePoolUndefineArgs{Pool: ret.Pool}, nil),
	)
}

// CleanAfar takes away what a run has left at a daemon that is away: what Sweep does,
// and the files of a run whose pool is gone, as after a boot of that host. Number is
// that of the target among the run's own, directory that of the guests' files.
func (t *Target) CleanAfar(ctx context.Context, run string, number int, directory string) error {
	err := t.Sweep(ctx, run)
	pool, failed := t.makePool(ctx, fmt.Sprintf("%s-%d-files", run, number), directoryAfar(directory, run, number))
	if failed == nil {
		failed = t.removePool(ctx, pool)
	}
	return errors.Join(err, failed)
}

// makePool makes one that is gone with the next boot, and its directory.
func (t *Target) makePool(ctx context.Context, name, dir string) (xdr.StoragePool, error) {
	var ret xdr.StoragePoolCreateXMLRet
	err := t.call(ctx, xdr.ProcStoragePoolCreateXML, &xdr.StoragePoolCreateXMLArgs{XML: poolDocument(name, dir), Flags: poolBuild}, &ret)
	return ret.Pool, fault.Wrap(err, fault.Failed, fault.Pool, "cannot make a pool of %s on the daemon's host: --files names a directory there", dir)
}
