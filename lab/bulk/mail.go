package bulk

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Mail is a mail server's work on a folder of many files: one is removed, one
// delivered and made durable, one read and added to, and one read. Sizes are
// spread evenly by their logarithm, so that small ones are common.
type Mail struct {
	// Dir is where a folder is made for it, and removed at the end.
	Dir string `json:"dir"`
	// Files is how many there are at first: 100000.
	Files int `json:"files,omitzero"`
	// Least and Most are the sizes in bytes: 1 KB to 1 MB.
	Least int `json:"least,omitzero"`
	Most  int `json:"most,omitzero"`
}

// The operations of a mail server. Each of the two that write ends with fsync.
const (
	OpDelete = "delete"
	OpCreate = "create"
	OpAppend = "append"
	OpRead   = "read"
)

const (
	maxFiles  = 10_000_000
	mostBytes = 64 << 20
	// blockSize is how much is written at once.
	blockSize = 64 << 10
)

// Settle fills in what was not said and refuses what cannot be.
func (m *Mail) Settle() error {
	for _, d := range []struct {
		value     *int
		otherwise int
	}{{&m.Files, 100_000}, {&m.Least, 1 << 10}, {&m.Most, 1 << 20}} {
		if *d.value == 0 {
			*d.value = d.otherwise
		}
	}
	switch {
	case !filepath.IsAbs(m.Dir):
		return fault.New(fault.Invalid, fault.Config, "dir is %q: give an absolute path", m.Dir)
	case m.Files < 1 || m.Files > maxFiles:
		return fault.New(fault.Invalid, fault.Config, "files is %d: 1 to %d are possible", m.Files, maxFiles)
	case m.Least < 1 || m.Most < m.Least || m.Most > mostBytes:
		return fault.New(fault.Invalid, fault.Config, "sizes are %d to %d: 1 to %d are possible", m.Least, m.Most, mostBytes)
	}
	return nil
}

// Mean is the mean size of a file, in bytes.
func (m Mail) Mean() int {
	if m.Least == m.Most {
		return m.Least
	}
	return int(float64(m.Most-m.Least) / math.Log(float64(m.Most)/float64(m.Least)))
}

// need is what the files may grow to: every one can be added to until Most.
func (m Mail) need() int64 { return int64(m.Files) * int64(m.Mean()) * 3 / 2 }

func (m Mail) size(d *rand.Rand) int {
	return int(float64(m.Least) * math.Pow(float64(m.Most)/float64(m.Least), d.Float64()))
}

// Spool is the folder of a Mail while it is in use.
type Spool struct {
	Mail
	dir string
}

// Open makes the folder and its files, after it has seen that there is room. wrote
// is told of the bytes. The caller closes the spool, also after an error.
func (m Mail) Open(ctx context.Context, draw *rand.Rand, wrote func(bytes int64)) (*Spool, error) {
	if err := m.room(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(m.Dir, "lodge-mail-")
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make the mail's folder")
	}
	s := &Spool{m, dir}
	b := s.Box(0, 1, draw)
	for n := range m.Files {
		if ctx.Err() != nil {
			return s, context.Cause(ctx)
		}
		bytes, err := b.write(n, os.O_CREATE|os.O_EXCL, m.size(draw), false)
		if err != nil {
			return s, err
		}
		wrote(bytes)
	}
	return s, nil
}

func (m Mail) room() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(m.Dir, &fs); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot look at %s", m.Dir)
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < m.need() {
		return fault.New(fault.NoCapacity, fault.Host, "%d files of %d bytes on the average, with room to grow, need %d MiB and %s has %d MiB free: take fewer files",
			m.Files, m.Mean(), m.need()>>20, m.Dir, free>>20)
	}
	return nil
}

// Close removes the folder.
func (s *Spool) Close() error {
	if s == nil {
		return nil
	}
	return fault.Wrap(os.RemoveAll(s.dir), fault.Failed, fault.Host, "cannot remove the mail's folder")
}

// Box is one thread's part of the spool: files that no other thread touches.
type Box struct {
	spool       *Spool
	first, step int
	draw        *rand.Rand
	block       []byte
}

// Box gives the part of thread n of so many.
func (s *Spool) Box(n, threads int, draw *rand.Rand) *Box {
	b := &Box{s, n, threads, draw, make([]byte, blockSize)}
	for i := range b.block {
		b.block[i] = byte(draw.Uint32())
	}
	return b
}

// pick draws one of the box's files.
func (b *Box) pick() int {
	return b.first + b.step*b.draw.IntN(max(1, (b.spool.Files-b.first+b.step-1)/b.step))
}

func (b *Box) path(n int) string { return filepath.Join(b.spool.dir, strconv.Itoa(n)) }

// Cycle does the work of a mail server once: note is told of each operation.
func (b *Box) Cycle(note func(op string, started time.Time, bytes int64, err error)) error {
	gone, other := b.pick(), b.pick()
	for _, step := range []struct {
		op string
		do func() (int64, error)
	}{
		{OpDelete, func() (int64, error) { return 0, os.Remove(b.path(gone)) }},
		{OpCreate, func() (int64, error) {
			return b.write(gone, os.O_CREATE|os.O_EXCL, b.spool.size(b.draw), true)
		}},
		{OpRead, func() (int64, error) { return b.read(other) }},
		{OpAppend, func() (int64, error) { return b.grow(other) }},
		{OpRead, func() (int64, error) { return b.read(b.pick()) }},
	} {
		started := time.Now()
		bytes, err := step.do()
		if err != nil {
			err = fmt.Errorf("cannot %s a mail: %w", step.op, err)
		}
		note(step.op, started, bytes, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// grow adds to a file; one that has reached the most begins anew, so that the
// spool keeps its size.
func (b *Box) grow(n int) (int64, error) {
	info, err := os.Stat(b.path(n))
	if err != nil {
		return 0, err
	}
	add, flags := b.spool.size(b.draw), os.O_APPEND
	if info.Size()+int64(add) > int64(b.spool.Most) {
		flags = os.O_TRUNC
	}
	return b.write(n, flags, add, true)
}

func (b *Box) write(n, flags, size int, durable bool) (int64, error) {
	file, err := os.OpenFile(b.path(n), os.O_WRONLY|flags, 0o600)
	if err != nil {
		return 0, err
	}
	// Other bytes in every file: nothing below can share or pack them.
	for i := 0; i+8 <= min(size, blockSize); i += 512 {
		b.block[i+b.draw.IntN(8)] ^= byte(1 + b.draw.IntN(255))
	}
	for left := size; left > 0 && err == nil; left -= blockSize {
		_, err = file.Write(b.block[:min(left, blockSize)])
	}
	if durable && err == nil {
		err = file.Sync()
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	return int64(size), err
}

func (b *Box) read(n int) (int64, error) {
	file, err := os.Open(b.path(n))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return io.Copy(io.Discard, file)
}
