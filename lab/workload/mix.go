package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// MixCPU is the configuration of many small jobs for the processor and the
// memory. Its operations are the jobs by their names; jobs a minute are its metric.
type MixCPU struct {
	Pace
	// Megabytes of memory that each user works on: 8.
	Megabytes int `json:"megabytes,omitzero"`
}

// MixDisk is the configuration of many small jobs for a file system. Its
// operations are the jobs by their names.
type MixDisk struct {
	Pace
	// Dir is where a folder is made for it, and removed at the end.
	Dir string `json:"dir"`
	// Megabytes of the one file that each user has: 4.
	Megabytes int `json:"megabytes,omitzero"`
}

const maxMixMegabytes = 4096

func newMixCPU(config json.RawMessage) (Load, error) {
	var c MixCPU
	if err := parse(config, &c); err != nil {
		return nil, err
	}
	orElse(&c.Megabytes, 8)
	if c.Megabytes < 1 || c.Megabytes > maxMixMegabytes {
		return nil, invalid("megabytes is %d: 1 to %d are possible", c.Megabytes, maxMixMegabytes)
	}
	if err := c.settle(); err != nil {
		return nil, err
	}
	return &paced{c.Pace, func(_ int, draw *rand.Rand) worker {
		return &cruncher{draw: draw, size: c.Megabytes << 20}
	}}, nil
}

// cruncher is one user of the processor.
type cruncher struct {
	draw   *rand.Rand
	size   int
	memory []byte // made with the first job
	kept   uint64 // what came out, so that no job can be left out
}

func (c *cruncher) close() {}

// crunches are the jobs: each the same work every time.
var crunches = []struct {
	op string
	do func(*cruncher) error
}{
	{"integers", (*cruncher).integers},
	{"floats", (*cruncher).floats},
	{"sort", (*cruncher).sort},
	{"copy", (*cruncher).copy},
	{"checksum", (*cruncher).checksum},
}

func (c *cruncher) do(ctx context.Context, intended time.Time, m *meter) error {
	started := time.Now()
	if c.memory == nil {
		c.memory = make([]byte, c.size)
		for i := 0; i < len(c.memory); i += 64 {
			c.memory[i] = byte(c.draw.Uint32())
		}
	}
	job := crunches[c.draw.IntN(len(crunches))]
	err := context.Cause(ctx)
	if err == nil {
		err = job.do(c)
	}
	m.note(job.op, intended, started, 0, err)
	return err
}

// integers counts the primes to a bound, which is known.
func (c *cruncher) integers() error {
	const bound, primes = 200_000, 17_984
	sieve := make([]bool, bound+1)
	n := 0
	for i := 2; i <= bound; i++ {
		if sieve[i] {
			continue
		}
		n++
		for k := i * i; k <= bound; k += i {
			sieve[k] = true
		}
	}
	if n != primes {
		return fmt.Errorf("the processor counts %d primes to %d instead of %d", n, bound, primes)
	}
	return nil
}

// floats adds up to π.
func (c *cruncher) floats() error {
	sum := 0.0
	for k := range 400_000 {
		sum += 8 / (float64(4*k+1) * float64(4*k+3))
	}
	if math.Abs(sum-math.Pi) > 1e-5 {
		return fmt.Errorf("the processor adds up to %v instead of π", sum)
	}
	return nil
}

func (c *cruncher) sort() error {
	all := make([]uint64, 30_000)
	for i := range all {
		all[i] = c.draw.Uint64()
	}
	slices.Sort(all)
	if !slices.IsSorted(all) {
		return errors.New("the processor does not sort")
	}
	return nil
}

func (c *cruncher) copy() error {
	half := len(c.memory) / 2
	copy(c.memory[half:], c.memory[:half])
	c.kept += uint64(c.memory[len(c.memory)-1])
	return nil
}

func (c *cruncher) checksum() error {
	c.kept += uint64(crc32.ChecksumIEEE(c.memory[:min(len(c.memory), 4<<20)]))
	return nil
}

func newMixDisk(config json.RawMessage) (Load, error) {
	var d MixDisk
	if err := parse(config, &d); err != nil {
		return nil, err
	}
	orElse(&d.Megabytes, 4)
	switch {
	case d.Megabytes < 1 || d.Megabytes > maxMixMegabytes:
		return nil, invalid("megabytes is %d: 1 to %d are possible", d.Megabytes, maxMixMegabytes)
	case !filepath.IsAbs(d.Dir):
		return nil, invalid("dir is %q: give an absolute path", d.Dir)
	}
	return &d, d.settle()
}

// Run makes a folder, works in it and removes it.
func (d *MixDisk) Run(ctx context.Context, out func(Interval)) error {
	dir, err := os.MkdirTemp(d.Dir, "lodge-mix-")
	if err != nil {
		return fmt.Errorf("cannot make a folder for the mix: %w", err)
	}
	work := &paced{d.Pace, func(number int, draw *rand.Rand) worker {
		return &filer{draw: draw, path: filepath.Join(dir, fmt.Sprint(number)), size: d.Megabytes << 20}
	}}
	return errors.Join(work.Run(ctx, out), os.RemoveAll(dir))
}

// filer is one user of the file system.
type filer struct {
	draw *rand.Rand
	path string
	size int
	made bool // the file is there
}

func (f *filer) close() {}

const (
	mixBlock = 64 << 10
	small    = 4 << 10
)

// filings are the jobs, besides writing the file as a whole, which comes first.
var filings = []struct {
	op string
	do func(*filer) (int64, error)
}{
	{"rewrite", (*filer).rewrite},
	{"read", (*filer).read},
	{"random-read", (*filer).scan},
	{"random-write", (*filer).patch},
	{"names", (*filer).names},
}

func (f *filer) do(ctx context.Context, intended time.Time, m *meter) error {
	started := time.Now()
	job := filings[f.draw.IntN(len(filings))]
	if !f.made {
		job = filings[0]
	}
	var bytes int64
	err := context.Cause(ctx)
	if err == nil {
		bytes, err = job.do(f)
	}
	m.note(job.op, intended, started, bytes, err)
	return err
}

// with opens the user's file, has it used, and closes it.
func (f *filer) with(flags int, use func(file *os.File) (int64, error)) (n int64, err error) {
	file, err := os.OpenFile(f.path, flags, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return use(file)
}

func (f *filer) block(size int) []byte {
	block := make([]byte, size)
	for i := range block {
		block[i] = byte(f.draw.Uint32())
	}
	return block
}

func (f *filer) rewrite() (int64, error) {
	block := f.block(mixBlock)
	return f.with(os.O_CREATE|os.O_WRONLY|os.O_TRUNC, func(file *os.File) (n int64, err error) {
		for n < int64(f.size) && err == nil {
			_, err = file.Write(block)
			n += mixBlock
		}
		if err == nil {
			err = file.Sync()
		}
		f.made = f.made || err == nil
		return n, err
	})
}

func (f *filer) read() (int64, error) {
	return f.with(os.O_RDONLY, func(file *os.File) (int64, error) {
		n, err := io.Copy(io.Discard, file)
		if err == nil && n != int64(f.size) {
			err = fmt.Errorf("the file has %d bytes instead of %d", n, f.size)
		}
		return n, err
	})
}

func (f *filer) scan() (int64, error) {
	block := make([]byte, small)
	return f.with(os.O_RDONLY, func(file *os.File) (n int64, err error) {
		for range 64 {
			if _, err = file.ReadAt(block, f.at()); err != nil {
				return n, err
			}
			n += small
		}
		return n, nil
	})
}

func (f *filer) patch() (int64, error) {
	block := f.block(small)
	return f.with(os.O_WRONLY, func(file *os.File) (n int64, err error) {
		for range 16 {
			if _, err = file.WriteAt(block, f.at()); err != nil {
				return n, err
			}
			n += small
		}
		return n, file.Sync()
	})
}

func (f *filer) at() int64 { return int64(f.draw.IntN(f.size/small)) * small }

// names makes, renames and removes small files.
func (f *filer) names() (int64, error) {
	for range 16 {
		one, other := f.path+".one", f.path+".other"
		if err := os.WriteFile(one, []byte(strings.Repeat("x", 100)), 0o600); err != nil {
			return 0, err
		}
		if err := os.Rename(one, other); err != nil {
			return 0, err
		}
		if err := os.Remove(other); err != nil {
			return 0, err
		}
	}
	return 0, nil
}
