package volume

import (
	"context"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Upload receives the bytes of a volume. It belongs to one goroutine, which must end it with Close or Abort.
type Upload struct {
	pool *Pool
	name string
	// client is the client that the job counts for.
	client string
	f      *os.File
	sc     scope.Scope // the client's scope
	at     int64
	end    int64 // the end of the given length; -1: none
	once   sync.Once
}

// noEnd is the end of a transfer without a length.
const noEnd = -1

// Upload begins to overwrite a volume from an offset on. If length is not 0, more bytes than that are refused.
func (p *Pool) Upload(ctx context.Context, sc scope.Scope, name string, offset, length uint64) (*Upload, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	at, end, err := transferRange(offset, length)
	if err != nil {
		return nil, err
	}
	v, err := p.Volume(name)
	if err != nil {
		return nil, err
	}
	if v.Kind == Directory {
		return nil, fault.New(fault.Unsupported, fault.Volume, "cannot upload to volume %q: it is a directory", name)
	}
	if _, err := p.beginJob(sc, name, uploading, true); err != nil {
		return nil, err
	}
	f, _, err := p.open(ctx, name, unix.O_RDWR)
	if err == nil {
		if err = p.lockAgainstGuests(ctx, f); err == nil {
			err = p.cancelWipe(name)
		}
		if err == nil && sc.Folders() != nil { // the volume may be the disk of a guest without path limits
			err = runInWorker(ctx, p.worker, func() error { return image.RecordBeforeWrite(f) })
		}
		if err != nil {
			_ = f.Close() // nothing was written
		}
	}
	if err != nil {
		p.endJob(name, sc.Client())
		return nil, fault.Wrap(err, fault.Of(err), fault.Volume, "cannot upload to volume %q of pool %q", name, p.name)
	}
	return &Upload{pool: p, name: name, client: sc.Client(), f: f, sc: sc, at: at, end: end}, nil
}

// lockAgainstGuests keeps guests from opening a file until it is closed. Some file systems ask their server.
func (p *Pool) lockAgainstGuests(ctx context.Context, f *os.File) error {
	return runInWorker(ctx, p.worker, func() error { _, err := image.LockToWrite(f); return err })
}

// checkUnused refuses a file that a guest has open.
func checkUnused(f *os.File) error {
	if image.InUse(f) != image.Unused {
		return fault.New(fault.Busy, fault.Volume, "a guest has it open; stop the guest first")
	}
	return nil
}

func transferRange(offset, length uint64) (at, end int64, err error) {
	const most = 1<<63 - 1
	if offset > most || length > most-offset {
		return 0, 0, fault.New(fault.Invalid, fault.Volume, "offset %d and length %d exceed the maximum size of a volume", offset, length)
	}
	if length == 0 {
		return int64(offset), noEnd, nil
	}
	return int64(offset), int64(offset + length), nil
}

// checkLength checks that n more bytes are within the length.
func (u *Upload) checkLength(n int64) error {
	if limit := u.limit(); n < 0 || n > limit-u.at {
		return fault.New(fault.Invalid, fault.Volume, "volume %q received more bytes than the given length", u.name)
	}
	return nil
}

func (u *Upload) limit() int64 {
	if u.end == noEnd {
		return 1<<63 - 1
	}
	return u.end
}

// Write writes the next bytes.
func (u *Upload) Write(b []byte) (int, error) {
	if err := u.checkLength(int64(len(b))); err != nil {
		return 0, err
	}
	failpoint.Reach("volume.upload")
	n, err := u.f.WriteAt(b, u.at)
	u.at += int64(n)
	if err != nil {
		return n, fault.Wrap(err, fault.Failed, fault.Volume, "cannot write volume %q", u.name)
	}
	return n, nil
}

// Hole skips n bytes, which read as zeros afterwards.
func (u *Upload) Hole(n int64) error {
	if err := u.checkLength(n); err != nil {
		return err
	}
	size, err := u.f.Seek(0, io.SeekEnd)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot find the end of volume %q", u.name)
	}
	if inside := min(n, size-u.at); inside > 0 {
		if err := unix.Fallocate(int(u.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, u.at, inside); err != nil {
			// The file cannot have holes, so zeros are written.
			if err := image.Zero(u.pool.pools.life, u.f, u.at, u.at+inside); err != nil {
				return err
			}
		}
	}
	u.at += n
	if u.at > size {
		if err := u.f.Truncate(u.at); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Volume, "cannot extend volume %q", u.name)
		}
	}
	return nil
}

// Close ends the upload. Nil means that all bytes are on disk.
func (u *Upload) Close() error {
	err := fault.Wrap(u.f.Sync(), fault.Failed, fault.Volume, "cannot sync volume %q", u.name)
	if err == nil && u.sc.Folders() != nil {
		err = closeChecked(u.pool.pools.life, u.sc, u.f)
	}
	failpoint.Reach("volume.uploaded")
	u.finish()
	return err
}

// Abort ends the upload and keeps the bytes written so far.
func (u *Upload) Abort() { u.finish() }

func (u *Upload) finish() {
	u.once.Do(func() {
		p := u.pool
		_ = u.f.Close() // Close has synced
		if err := p.refreshVolume(p.pools.life, u.name); err != nil {
			p.pools.log.Warn("volume not readable after upload", "pool", p.name, "volume", u.name, "error", err)
		}
		p.endJob(u.name, u.client)
		p.emit(event.PoolRefresh{})
	})
}

// Download reads the bytes of a volume. It belongs to one goroutine, which must Close it.
type Download struct {
	pool    *Pool
	name    string
	client  string // the client that the job counts for
	f       *os.File
	at, end int64
	once    sync.Once
}

// Download begins to read a volume from an offset on, to its end or, if length is not 0, for length bytes.
func (p *Pool) Download(ctx context.Context, sc scope.Scope, name string, offset, length uint64) (*Download, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	at, end, err := transferRange(offset, length)
	if err != nil {
		return nil, err
	}
	v, err := p.Volume(name)
	if err != nil {
		return nil, err
	}
	if v.Kind == Directory {
		return nil, fault.New(fault.Unsupported, fault.Volume, "cannot download volume %q: it is a directory", name)
	}
	if _, err := p.beginJob(sc, name, downloading, false); err != nil {
		return nil, err
	}
	type opened struct {
		f    *os.File
		size int64
	}
	o, err := runWithin(ctx, p.worker, answerTime, func() (opened, error) {
		f, err := p.openToRead(sc, v)
		if err != nil {
			return opened{}, err
		}
		size, err := f.Seek(0, io.SeekEnd)
		return opened{f, size}, err
	}, func(o opened) { _ = o.f.Close() })
	if err != nil {
		p.endJob(name, sc.Client())
		return nil, fault.Wrap(err, fault.Of(err), fault.Volume, "cannot download volume %q of pool %q", name, p.name)
	}
	if end == noEnd || end > o.size {
		end = o.size
	}
	return &Download{pool: p, name: name, client: sc.Client(), f: o.f, at: at, end: max(at, end)}, nil
}

// Read reads the next bytes, holes as zeros, and io.EOF at the end.
func (d *Download) Read(b []byte) (int, error) {
	if d.at >= d.end {
		return 0, io.EOF
	}
	n, err := d.f.ReadAt(b[:min(int64(len(b)), d.end-d.at)], d.at)
	d.at += int64(n)
	switch {
	case n > 0:
		return n, nil
	case err == io.EOF:
		return 0, err
	}
	return 0, fault.Wrap(err, fault.Failed, fault.Volume, "cannot read volume %q", d.name)
}

// Section returns the type, hole or data, and the length in bytes of the next section. At the end it returns
// io.EOF.
func (d *Download) Section() (hole bool, n int64, err error) {
	if d.at >= d.end {
		return false, 0, io.EOF
	}
	data, end, err := image.Extent(d.f, d.at, d.end)
	return !data, end - d.at, err
}

// Skip skips n bytes of a hole that Section reported.
func (d *Download) Skip(n int64) { d.at = min(d.at+n, d.end) }

// Close ends the download.
func (d *Download) Close() {
	d.once.Do(func() {
		_ = d.f.Close() // opened to read
		d.pool.endJob(d.name, d.client)
	})
}
