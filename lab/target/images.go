package target

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/pool"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// imageStore is where the images of the lab's guests are kept at a daemon that is
// away, from run to run.
type imageStore struct {
	target *Target
	pool   xdr.StoragePool
	dir    string
}

// inStore does something with the store below a directory. Its pool is there only
// meanwhile, unless another run has it.
func (t *Target) inStore(ctx context.Context, directory string, do func(*imageStore) error) (err error) {
	s := &imageStore{target: t, dir: path.Join(directory, "images")}
	if s.pool, err = t.makePool(ctx, storeName(s.dir), s.dir); err != nil {
		there, failed := t.findStore(ctx, s.dir)
		if failed != nil {
			return err
		}
		s.pool = there
		return do(s)
	}
	defer func() { err = errors.Join(err, t.closeStore(context.WithoutCancel(ctx), s.pool)) }()
	return do(s)
}

// storeName is that of the pool of a directory.
func storeName(dir string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	return fmt.Sprintf("lodge-lab-images-%08x", h.Sum32())
}

func (t *Target) findStore(ctx context.Context, dir string) (xdr.StoragePool, error) {
	var ret xdr.StoragePoolLookupByNameRet
	err := t.call(ctx, xdr.ProcStoragePoolLookupByName, &xdr.StoragePoolLookupByNameArgs{Name: storeName(dir)}, &ret)
	return ret.Pool, err
}

// closeStore has the daemon forget the pool. Of what it refuses it is gone already, or
// another run sends an image.
func (t *Target) closeStore(ctx context.Context, store xdr.StoragePool) error {
	err := t.call(ctx, xdr.ProcStoragePoolDestroy, &xdr.StoragePoolDestroyArgs{Pool: store}, nil)
	if remote.Refused(err) {
		return nil
	}
	return err
}

// leaveStore closes the one below a directory that a killed lab has left open.
func (t *Target) leaveStore(ctx context.Context, directory string) error {
	left, err := t.findStore(ctx, path.Join(directory, "images"))
	if remote.Refused(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return t.closeStore(ctx, left)
}

// DropImages takes away the images that are kept below a directory of a daemon that
// is away.
func (t *Target) DropImages(ctx context.Context, directory string) error {
	return t.inStore(ctx, directory, func(s *imageStore) error { return pool.Remove(ctx, t, s.pool) })
}

// part is one file of an image.
type part struct {
	name string // in the store
	path string // here
}

// key tells images apart in the store.
func (i Image) key() string {
	_, digest, told := strings.Cut(i.Digest, ":")
	if !told {
		digest = i.Digest
	}
	return digest[:min(len(digest), 16)]
}

func (i Image) parts() []part {
	all := []part{{i.key() + "-vmlinuz", i.Kernel}, {i.key() + "-initrd", i.Initrd}, {i.key() + "-usr.raw", i.Usr}, {i.key() + "-root.raw", i.Root}}
	if i.Generic != (image.Kernel{}) {
		all = append(all, part{i.key() + "-vmlinuz-generic", i.Generic.Kernel}, part{i.key() + "-initrd-generic", i.Generic.Initrd})
	}
	return all
}

// mark is made last: an image that has it is whole.
func (i Image) mark() string { return i.key() + "-whole" }

// there is the image as guests of the daemon find it.
func (s *imageStore) there(i Image) Image {
	all := i.parts()
	at := func(n int) string { return path.Join(s.dir, all[n].name) }
	found := Image{Digest: i.Digest, Kernel: at(0), Initrd: at(1), Usr: at(2), Root: at(3)}
	if i.Generic != (image.Kernel{}) {
		found.Generic = image.Kernel{Kernel: at(4), Initrd: at(5)}
	}
	return found
}

// has says whether an image is there as a whole, and what there is of it.
func (s *imageStore) has(ctx context.Context, i Image) (whole bool, found []xdr.StorageVol, err error) {
	all, err := pool.Volumes(ctx, s.target, s.pool)
	for _, v := range all {
		if strings.HasPrefix(v.Name, i.key()+"-") {
			found = append(found, v)
			whole = whole || v.Name == i.mark()
		}
	}
	return whole && len(found) > len(i.parts()), found, err
}

// missing is how much has to be sent, in bytes, at most.
func (s *imageStore) missing(ctx context.Context, i Image) (bytes uint64, err error) {
	whole, _, err := s.has(ctx, i)
	if err != nil || whole {
		return 0, err
	}
	for _, p := range i.parts() {
		info, err := os.Stat(p.path)
		if err != nil {
			return 0, fault.Wrap(err, fault.NotFound, fault.Host, "cannot look at the guests' image")
		}
		bytes += uint64(info.Size())
	}
	return bytes, nil
}

// keep sends an image, unless it is there, and gives it as it is there. What another
// run has left half sent is sent anew.
func (s *imageStore) keep(ctx context.Context, i Image) (Image, error) {
	whole, found, err := s.has(ctx, i)
	if err != nil || whole {
		return s.there(i), err
	}
	for _, v := range found {
		if err := s.target.call(ctx, xdr.ProcStorageVolDelete, &xdr.StorageVolDeleteArgs{Volume: v}, nil); err != nil {
			return Image{}, err
		}
	}
	for _, p := range i.parts() {
		if err := s.send(ctx, p); err != nil {
			return Image{}, fault.Wrap(err, fault.Of(err), fault.Volume, "cannot bring the guests' image to the daemon's host")
		}
	}
	_, err = pool.File(ctx, s.target, s.pool, i.mark(), 1)
	return s.there(i), err
}

func (s *imageStore) send(ctx context.Context, p part) error {
	file, err := os.Open(p.path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	v, err := pool.File(ctx, s.target, s.pool, p.name, info.Size())
	if err != nil {
		return err
	}
	return s.target.upload(ctx, v, file, info.Size())
}

// sparse is the flag of transfers that have holes.
const sparse = 1

// upload fills a volume with a file, over a connection of its own. A daemon that does
// not know of holes gets zeros.
func (t *Target) upload(ctx context.Context, v xdr.StorageVol, file *os.File, size int64) error {
	conn, stalled, end, err := t.aside(ctx)
	if err != nil {
		return err
	}
	defer end()
	args := &xdr.StorageVolUploadArgs{Volume: v, Length: uint64(size), Flags: sparse}
	to, err := conn.OpenStream(ctx, xdr.ProcStorageVolUpload, args, nil)
	holes := true
	if refused, ok := errors.AsType[*remote.Error](err); ok && (refused.Unsupported() || refused.Code == codeInvalidArgument) {
		holes, args.Flags = false, 0
		to, err = conn.OpenStream(ctx, xdr.ProcStorageVolUpload, args, nil)
	}
	if err != nil {
		return err
	}
	if err := pour(ctx, to, file, size, holes, func() { stalled.Reset(patience) }); err != nil {
		return err
	}
	finish, stop := context.WithTimeoutCause(ctx, patience, fault.New(fault.Timeout, fault.Call, "the daemon has not taken the end of it within %s", patience))
	defer stop()
	return to.Finish(finish)
}

// aside makes a connection for one transfer. It is dropped with the context, and when
// nobody has put stalled off for the lab's patience.
func (t *Target) aside(ctx context.Context) (conn *remote.Conn, stalled *time.Timer, end func(), err error) {
	if conn, err = remote.Dial(ctx, t.URI); err != nil {
		return nil, nil, nil, err
	}
	stalled = time.AfterFunc(patience, conn.Close)
	ended := context.AfterFunc(ctx, conn.Close)
	return conn, stalled, func() { ended(); stalled.Stop(); conn.Close() }, nil
}

// codeInvalidArgument is libvirt's, also for flags that a daemon does not know.
const codeInvalidArgument = 8

// pour writes a file into a stream, and tells of each step.
func pour(ctx context.Context, to *remote.Stream, file *os.File, size int64, holes bool, step func()) error {
	chunk := make([]byte, xdr.StreamData)
	for at := int64(0); at < size; step() {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		end := size
		if holes {
			data, last := extent(file, at, size)
			if data > at {
				if err := to.Hole(ctx, data-at); err != nil {
					return err
				}
				at = data
				continue
			}
			end = last
		}
		n, err := file.ReadAt(chunk[:min(int64(len(chunk)), end-at)], at)
		if n == 0 {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot read %s", file.Name())
		}
		if _, err := to.Write(chunk[:n]); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// extent is where data begin from a place on, and where they end. A file system that
// does not tell has data all over.
func extent(file *os.File, at, size int64) (data, end int64) {
	data, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // none behind it
		return size, size
	}
	if err != nil {
		return at, size
	}
	if end, err = unix.Seek(int(file.Fd()), data, unix.SEEK_HOLE); err != nil {
		end = size
	}
	return min(data, size), min(end, size)
}

// consoleSize is of the file for a guest's console before QEMU writes to it, in bytes.
const consoleSize = 4 * scenario.KiB

// lastOf reads the end of a volume that grows.
func (t *Target) lastOf(ctx context.Context, files xdr.StoragePool, name string, most uint64) ([]byte, error) {
	all, err := pool.Volumes(ctx, t, files)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all, func(v xdr.StorageVol) bool { return v.Name == name })
	if at < 0 {
		return nil, fault.New(fault.NotFound, fault.Volume, "there is no %s", name)
	}
	var info xdr.StorageVolGetInfoRet
	if err := t.call(ctx, xdr.ProcStorageVolGetInfo, &xdr.StorageVolGetInfoArgs{Volume: all[at]}, &info); err != nil {
		return nil, err
	}
	conn, _, end, err := t.aside(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	args := &xdr.StorageVolDownloadArgs{Volume: all[at], Offset: info.Capacity - min(info.Capacity, most), Length: min(info.Capacity, most)}
	from, err := conn.OpenStream(ctx, xdr.ProcStorageVolDownload, args, nil)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(from, int64(args.Length)))
}
