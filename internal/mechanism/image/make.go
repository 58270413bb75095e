package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Preallocation says how much of a new image is allocated in advance.
type Preallocation string

// The preallocations. Metadata is for qcow2 only.
const (
	Thin     Preallocation = "off"
	Metadata Preallocation = "metadata"
	Falloc   Preallocation = "falloc"
	Full     Preallocation = "full"
)

// Plan describes an image to make.
type Plan struct {
	Format        Format
	Virtual       uint64 // bytes
	Preallocation Preallocation
	// Reserved is how many bytes at the start of a thin raw image are allocated.
	Reserved uint64
	// NoCOW asks the file system (btrfs) not to copy this file on write.
	NoCOW bool
	// Encryption encrypts the image: required for LUKS, optional for qcow2.
	Encryption *Encryption `json:"Lock"` // the name in records of volumes

	// The following fields are for qcow2 only.
	Backing       *Backing // Name is an absolute path, Format is declared
	Compat        string   // 0.10 or 1.1; "" is the tool's default
	ClusterSize   uint64   // bytes; 0 is the tool's default
	LazyRefcounts bool
	ExtendedL2    bool
}

// Check validates a plan before the image is made.
func (p *Plan) Check() error {
	invalid := func(format string, args ...any) error {
		return fault.New(fault.Invalid, fault.Volume, format, args...)
	}
	switch {
	case p.Virtual > maxVirtual:
		return invalid("a capacity of %d bytes is more than a disk can have", p.Virtual)
	case p.Format != Qcow2 && (p.Backing != nil || p.Compat != "" || p.ClusterSize != 0 || p.LazyRefcounts || p.ExtendedL2):
		return fault.New(fault.Unsupported, fault.Config, "backing store, compat, cluster size and features are for qcow2, not for %s", p.Format)
	case p.Preallocation == Metadata && p.Format != Qcow2:
		return invalid("metadata can be preallocated in qcow2 only, not in %s", p.Format)
	case p.Compat != "" && p.Compat != "0.10" && p.Compat != "1.1":
		return invalid("compat %q is not one of 0.10, 1.1", p.Compat)
	case p.Compat == "0.10" && (p.LazyRefcounts || p.ExtendedL2):
		return invalid("lazy refcounts and extended L2 entries need compat 1.1")
	case p.ClusterSize != 0 && (p.ClusterSize&(p.ClusterSize-1) != 0 || p.ClusterSize < 1<<minClusterBits || p.ClusterSize > 1<<maxClusterBits):
		return invalid("a cluster size of %d bytes is not a power of two between 512 and 2097152", p.ClusterSize)
	}
	if err := p.checkEncryption(); err != nil || p.Backing == nil {
		return err
	}
	switch {
	case !strings.HasPrefix(p.Backing.Name, "/"):
		return invalid("backing store %q is not an absolute path", p.Backing.Name)
	case len(p.Backing.Name) > maxBackingName:
		return invalid("the path of the backing store has more than %d bytes", maxBackingName)
	case p.Backing.Format == "":
		return invalid("the format of backing store %s is not declared", p.Backing.Name)
	case p.Preallocation != Thin && p.Preallocation != "":
		return invalid("an image on a backing store cannot be preallocated")
	}
	return nil
}

func (p *Plan) checkEncryption() error {
	switch {
	case p.Encryption != nil && p.Format != LUKS && p.Format != Qcow2:
		return fault.New(fault.Unsupported, fault.Volume, "raw and qcow2 volumes can be encrypted, not %s", p.Format)
	case p.Encryption == nil && p.Format == LUKS:
		return fault.New(fault.Internal, fault.Volume, "an encrypted volume has no passphrase")
	case p.Encryption == nil:
		return nil
	}
	return p.Encryption.check()
}

// Make makes an image in an empty file that is open to write.
func (t *Tool) Make(ctx context.Context, f *os.File, p Plan) error {
	if err := p.Check(); err != nil {
		return err
	}
	if p.NoCOW {
		if err := setNoCOW(f); err != nil {
			return err
		}
	}
	switch p.Format {
	case Raw, ISO:
		return makeRaw(ctx, f, p)
	case Qcow2, Qcow, QED, VDI, VMDK, VPC, VHDX, LUKS:
		return t.makeFormat(ctx, f, p)
	}
	return fault.New(fault.Unsupported, fault.Config, "cannot make images of format %q", p.Format)
}

// setNoCOW sets the NOCOW attribute; a file system without it does not copy on write.
func setNoCOW(f *os.File) error {
	const noCOW = 0x00800000
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return nil //nolint:nilerr // the file system has no such attribute
	}
	err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags|noCOW))
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return fault.Wrap(err, fault.Failed, fault.Volume, "cannot turn off copy on write for %s", f.Name())
}

func makeRaw(ctx context.Context, f *os.File, p Plan) error {
	release, err := LockToWrite(f) // without fallocate the space is written with zeros
	if err != nil {
		return err
	}
	defer release()
	if err := f.Truncate(int64(p.Virtual)); err != nil {
		return writeFault(err, "cannot size image")
	}
	switch p.Preallocation {
	case Full:
		return Zero(ctx, f, 0, int64(p.Virtual))
	case Falloc:
		return allocate(ctx, f, 0, int64(p.Virtual))
	case Thin, Metadata, "":
	}
	return allocate(ctx, f, 0, int64(min(p.Reserved, p.Virtual)))
}

// allocate allocates a part of a file, in steps so that it can be cancelled. It writes zeros if the file
// system cannot allocate.
func allocate(ctx context.Context, f *os.File, at, end int64) error {
	const step = 1 << 30
	for at < end {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(step, end-at)
		err := unix.Fallocate(int(f.Fd()), 0, at, n)
		switch {
		case err == nil:
			at += n
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return Zero(ctx, f, at, end)
		default:
			return writeFault(err, "cannot allocate image")
		}
	}
	return nil
}

// Zero writes zeros over a part of a file.
func Zero(ctx context.Context, f *os.File, at, end int64) error {
	zeros := make([]byte, 1<<20)
	for at < end {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), end-at)], at)
		if err != nil {
			return writeFault(err, "cannot write zeros")
		}
		at += int64(n)
	}
	return nil
}

func writeFault(err error, doing string) error {
	kind := fault.Failed
	if isFull(err) {
		kind = fault.NoCapacity
	}
	return fault.Wrap(err, kind, fault.Volume, "%s", doing)
}

// makeFormat makes an image with qemu-img, which does not open the backing file: the caller has checked
// that with OpenChain.
func (t *Tool) makeFormat(ctx context.Context, f *os.File, p Plan) error {
	k := passphrases{files: []*os.File{f}}
	defer k.close()
	if p.Encryption != nil {
		if err := k.add(intoKey, p.Encryption.Passphrase); err != nil {
			return err
		}
	}
	args := append([]string{"create", "-q", "-f", string(p.Format)}, k.args...)
	if options := p.options(); options != "" {
		args = append(args, "-o", options)
	}
	if p.Backing != nil {
		args = append(args, "-u", "-b", p.Backing.Name, "-F", string(p.Backing.Format))
	}
	args = append(args, fmt.Sprintf("/proc/self/fd/%d", firstFile), strconv.FormatUint(p.Virtual, 10))
	cpu := shortWork
	if p.Preallocation == Thin || p.Preallocation == "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, shortWork, fault.New(fault.Timeout, fault.Volume, "qemu-img did not end within %v", shortWork))
		defer cancel()
	} else {
		cpu = 0
	}
	b := bounds{cpu: cpu, file: maxFileSize(p.Virtual)}
	err := t.run(ctx, b, k.files, nil, args...)
	for range lockTries - 1 {
		if err == nil || !strings.Contains(err.Error(), misjudged) {
			break
		}
		err = t.run(ctx, b, k.files, nil, args...)
	}
	return err
}

// A lock is made as strong as the processor is fast. Where the kernel counts a process's time in
// ticks the tool may find that it took none, and gives up; the next attempt does better.
const (
	misjudged = "Unable to get accurate CPU usage"
	lockTries = 10
)

// options returns the plan as creation options of qemu-img. No value contains a comma.
func (p *Plan) options() string {
	var o []string
	if p.Preallocation != "" && p.Preallocation != Thin {
		o = append(o, "preallocation="+string(p.Preallocation))
	}
	if p.Compat != "" {
		o = append(o, "compat="+p.Compat)
	}
	if p.ClusterSize != 0 {
		o = append(o, fmt.Sprintf("cluster_size=%d", p.ClusterSize))
	}
	if p.LazyRefcounts {
		o = append(o, "lazy_refcounts=on")
	}
	if p.ExtendedL2 {
		o = append(o, "extended_l2=on")
	}
	switch {
	case p.Encryption == nil:
	case p.Format == LUKS:
		o = append(o, p.Encryption.options("")...)
	default:
		o = append(append(o, "encrypt.format=luks"), p.Encryption.options("encrypt.")...)
	}
	return strings.Join(o, ",")
}

// Growth says how an image is resized.
type Growth struct {
	Size   uint64 // that a guest sees, in bytes
	Grown  Preallocation
	Shrink bool // allow to lose the data beyond the new end
	// Passphrase opens an encrypted image.
	Passphrase []byte
	// Below are the layers below the image. Resize uses them so that their data does not appear in the new
	// part.
	Below Chain
}

// Resize changes the virtual size. It shrinks only with Shrink, because the data beyond the new end is
// lost.
func (t *Tool) Resize(ctx context.Context, f *os.File, format Format, g Growth) error {
	info, err := Inspect(f, format)
	if err != nil {
		return err
	}
	switch {
	case g.Size > maxVirtual:
		return fault.New(fault.Invalid, fault.Volume, "a capacity of %d bytes is more than a disk can have", g.Size)
	case g.Size < info.Virtual && !g.Shrink:
		return fault.New(fault.Invalid, fault.Volume, "shrinking from %d to %d bytes loses the data beyond; use the shrink flag to do it", info.Virtual, g.Size)
	case format == Raw || format == ISO:
		return resizeRaw(ctx, f, int64(info.Virtual), int64(g.Size), g.Grown)
	case format != Qcow2 && format != QED && format != VDI && format != VHDX && format != LUKS:
		return fault.New(fault.Unsupported, fault.Volume, "images of format %q cannot be resized", format)
	}
	k := passphrases{files: []*os.File{f}}
	defer func() { k.close() }()
	for _, layer := range g.Below {
		k.files = append(k.files, layer.File)
	}
	what := []string{"-f", string(format), fmt.Sprintf("/proc/self/fd/%d", firstFile)}
	if info.Encrypted {
		if err := k.add(intoKey, g.Passphrase); err != nil {
			return err
		}
		what = append(k.args, "--image-opts", writeTarget(format))
	}
	if len(g.Below) > 0 {
		name, err := g.Below.describeAbove(format, info.Encrypted)
		if err != nil {
			return err
		}
		what = append(k.args, name)
	}
	args := []string{"resize", "-q"}
	if g.Size < info.Virtual {
		args = append(args, "--shrink")
	} else if g.Grown != Thin && g.Grown != "" {
		args = append(args, "--preallocation="+string(g.Grown))
	}
	args = append(append(args, what...), strconv.FormatUint(g.Size, 10))
	st, err := f.Stat()
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot stat %s", f.Name())
	}
	return withRecords(append(g.Below.toolImages(), toolImage{f, format}), func() error {
		return t.run(ctx, bounds{file: maxFileSize(max(g.Size, uint64(st.Size())))}, k.files, nil, args...)
	})
}

func resizeRaw(ctx context.Context, f *os.File, old, size int64, grown Preallocation) error {
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return fault.New(fault.Unsupported, fault.Volume, "a block device cannot be resized as an image")
	}
	release, err := LockToWrite(f)
	if err != nil {
		return err
	}
	defer release()
	if err := f.Truncate(size); err != nil {
		return writeFault(err, "cannot resize image")
	}
	if size > old && grown == Falloc {
		if err := allocate(ctx, f, old, size); err != nil {
			_ = f.Truncate(old) // back to the old size; the first error is reported
			return err
		}
	}
	return nil
}

// Copy says how an image is copied into another one that exists already.
type Copy struct {
	From Chain
	Into *os.File
	// Format of Into, which is empty and as large as From or larger.
	Format Format
	// FromKey and IntoKey are the passphrases of the uppermost layer of From and of Into, if they are
	// encrypted.
	FromKey, IntoKey []byte
	// Last is how many bytes at the start of a raw copy are written last, after all others are on disk: an
	// interrupted copy does not look like a disk.
	Last uint64
	// Progress is called with the completed share, 0 to 1, from one goroutine. It may be nil.
	Progress func(float64)
}

// maxCopy bounds the time of one copy: an hour a terabyte on a slow disk, with a margin.
const maxCopy = 7 * 24 * time.Hour

// Convert copies the data of an image with all its layers into another one, between any formats. A
// cancelled ctx ends it and leaves Into incomplete.
func (t *Tool) Convert(ctx context.Context, c Copy) error {
	if c.Last > 0 && (c.Format != Raw || c.IntoKey != nil) {
		return fault.New(fault.Internal, fault.Volume, "only a raw copy can write its beginning last")
	}
	ctx, cancel := context.WithTimeout(ctx, maxCopy)
	defer cancel()
	k := passphrases{files: []*os.File{c.Into}}
	defer func() { k.close() }()
	for _, layer := range c.From {
		k.files = append(k.files, layer.File)
	}
	if err := errors.Join(k.add(intoKey, c.IntoKey), k.add(fromKey, c.FromKey)); err != nil {
		return err
	}
	st, err := c.Into.Stat()
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot stat %s", c.Into.Name())
	}
	parts := []byteRange{{}}
	if c.Last > 0 && c.Last < c.From[0].Virtual {
		parts = []byteRange{{at: c.Last}, {size: c.Last}}
	}
	return withRecords(append(c.From.toolImages(), toolImage{c.Into, c.Format}), func() error {
		for i, p := range parts {
			names, err := c.names(p, st.Mode()&os.ModeDevice != 0)
			if err == nil && i > 0 {
				err = fault.Wrap(c.Into.Sync(), fault.Failed, fault.Volume, "cannot sync the copy")
			}
			if err == nil {
				args := append(append([]string{"convert", "-p", "-n"}, k.args...), names...)
				told := &progress{tell: c.Progress}
				if i > 0 { // the short rest at the end: the progress must not start again for it
					told.tell = nil
				}
				err = t.run(ctx, bounds{file: maxFileSize(c.From[0].Virtual + uint64(st.Size()))}, k.files, told, args...)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// byteRange is a part of the source, in bytes; a size of 0 extends to the end.
type byteRange struct{ at, size uint64 }

// names returns the file names of a part of the source and of the same part of the copy for qemu-img.
func (c Copy) names(p byteRange, device bool) ([]string, error) {
	format := c.Format
	if format == ISO {
		format = Raw
	}
	if p == (byteRange{}) {
		source, err := c.From.jsonName(firstFile + 1)
		if c.IntoKey != nil { // zeros are encrypted data there
			return []string{"--target-image-opts", source, writeTarget(format)}, err
		}
		return []string{"--target-is-zero", "-O", string(format), source, fmt.Sprintf("/proc/self/fd/%d", firstFile)}, err
	}
	window, driver := map[string]any{"driver": Raw, "offset": p.at, "file": c.From.describe(firstFile + 1)}, "file"
	if device {
		driver = "host_device"
	}
	into := fmt.Sprintf("driver=raw,offset=%d,file.driver=%s,file.filename=/proc/self/fd/%d", p.at, driver, firstFile)
	if p.size > 0 {
		window["size"] = p.size
		into += fmt.Sprintf(",size=%d", p.size)
	}
	source, err := named(window)
	return []string{"--target-is-zero", "--target-image-opts", source, into}, err
}
