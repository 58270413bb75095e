package target

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/node"
	"github.com/lodge-kvm/lodge/lab/pool"
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

// directory is that of a run's files at a daemon that is away: one that can be
// removed when it is empty, which is all that a daemon does.
func directoryAfar(directory, run string, number int) string {
	return path.Join(directory, fmt.Sprintf("%s-%d", run, number))
}

// CleanAfar takes away what a run has left at a daemon that is away: what Sweep does,
// and the files of a run whose pool is gone, as after a boot of that host. Number is
// that of the target among the run's own, directory that of the guests' files.
func (t *Target) CleanAfar(ctx context.Context, run string, number int, directory string) error {
	err := t.Sweep(ctx, run)
	files, failed := t.makePool(ctx, fmt.Sprintf("%s-%d-files", run, number), directoryAfar(directory, run, number))
	if failed == nil {
		failed = pool.Remove(ctx, t, files)
	}
	return errors.Join(err, failed, t.leaveStore(ctx, directory))
}

// makePool makes one for what is kept at a daemon that is away.
func (t *Target) makePool(ctx context.Context, name, dir string) (xdr.StoragePool, error) {
	made, err := pool.Make(ctx, t, name, dir)
	return made, fault.Wrap(err, fault.Of(err), fault.Pool, "--files names no directory that the daemon's host has room in")
}
