package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// MaxDepth is the largest number of layers in a chain. A longer chain is an attack or a mistake, and QEMU
// would need minutes to open it.
const MaxDepth = 200

// Open opens an image to read. Paths may come from hostile headers, so only files and block devices are
// opened: opening another device node can already do harm. No open waits for a peer.
func Open(path string) (*os.File, error) {
	return OpenAs(path, unix.O_RDONLY)
}

// OpenAs is Open with another access mode: unix.O_RDONLY or unix.O_RDWR.
func OpenAs(path string, mode int) (*os.File, error) { return OpenWithin(path, mode, nil) }

// OpenWithin is OpenAs for a path from a restricted client: below its folders, no link is followed (see WithFile).
// It does not check that the path lies in one of them; package authz does, and OpenChain for each layer.
func OpenWithin(path string, mode int, folders []string) (f *os.File, err error) {
	err = WithFile(path, folders, func(at string, nofollow int) error {
		fd, err := unix.Open(at, unix.O_PATH|unix.O_CLOEXEC|nofollow, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor has no data to write back
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return unix.ELOOP
		}
		f, err = Reopen(fd, path, mode)
		return err
	})
	if told := (*fault.Error)(nil); err != nil && !errors.As(err, &told) { // refused while following the path
		err = openFault(err, path)
	}
	return f, err
}

// Reopen opens the file or block device behind a descriptor that was opened
// with O_PATH; path only names it.
func Reopen(fd int, path string, mode int) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, openFault(err, path)
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFBLK {
		return nil, fault.New(fault.Invalid, fault.Volume, "cannot open image %s: it is neither a file nor a block device", path)
	}
	real, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openFault(err, path)
	}
	return os.NewFile(uintptr(real), path), nil
}

// openFault explains why an image cannot be opened. Local file systems do not refuse root, so EACCES names
// the file systems that do.
func openFault(err error, path string) error {
	kind := fault.Failed
	if errors.Is(err, unix.EACCES) {
		return fault.Wrap(err, kind, fault.Volume, "cannot open image %s: its file system refuses root, "+
			"as NFS with root_squash and FUSE without allow_other do; export it with no_root_squash, or permit all users to use the file (chmod o+rw, and o+x its directories)", path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, fault.NotFound, fault.File, "cannot open image %s", path)
	}
	return fault.Wrap(err, kind, fault.Volume, "cannot open image %s", path)
}

// Layer is one image of a chain, open to read.
type Layer struct {
	Path string
	Info
	File *os.File
	// Device: it is a block device, not a file.
	Device bool

	id    [2]uint64    // device and inode
	owner sandbox.User // user and group of the file
	// untrustedFS: the file system itself decides which owners it reports: see way.Claims.
	untrustedFS bool
}

// Chain is an image with all layers below it, topmost first.
type Chain []Layer

// Close closes every layer.
func (c Chain) Close() {
	files := make([]*os.File, len(c))
	for i, l := range c {
		files[i] = l.File
	}
	closeRead(files...)
}

// Has reports whether the layer is in the chain, under any name.
func (c Chain) Has(l Layer) bool {
	return slices.ContainsFunc(c, func(one Layer) bool { return one.id == l.id })
}

// NameBelow returns the name with which the header of one layer can refer to a lower one: its path or, if
// relative is set, a name relative to the upper layer. There is no relative name if a header between them
// has an absolute path.
func (c Chain) NameBelow(above, below int, relative bool) (string, error) {
	if !relative {
		return c[below].Path, nil
	}
	name := ""
	for _, l := range c[above:below] {
		next := ""
		if l.Backing != nil {
			next = strings.TrimPrefix(l.Backing.Name, "file:")
		}
		if next == "" || filepath.IsAbs(next) {
			return "", fault.New(fault.WrongState, fault.Domain, "can't keep relative backing relationship: the header of %s has an absolute path, or none (%q)", l.Path, next)
		}
		name = filepath.Join(filepath.Dir(name), next)
	}
	return name, nil
}

// closeTime is how long a caller waits for the close of files that were opened to read. Some file systems
// ask their server even for that.
const closeTime = time.Second

func closeRead(files ...*os.File) {
	if len(files) == 0 {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), closeTime)
	defer stop()
	_ = fsguard.RunLong(ctx, files[0].Name(), func() error {
		for _, f := range files {
			_ = f.Close() // nothing was written
		}
		return nil
	})
}

// OpenChain opens an image of a declared format and every layer below it. It bounds the depth and refuses
// loops, layers with data in another file, and a layer without a declared format that is not raw:
// following that one would trust the guest that wrote it. ctx bounds the wait for a file system that does
// not answer.
func OpenChain(ctx context.Context, sc scope.Scope, path string, declared Format) (Chain, error) {
	var chain Chain
	seen := map[[2]uint64]string{}
	for {
		if err := ctx.Err(); err != nil {
			chain.Close()
			return nil, context.Cause(ctx)
		}
		if len(chain) == MaxDepth {
			chain.Close()
			return nil, fault.New(fault.Invalid, fault.Volume, "the backing chain of %s has more than %d layers", chain[0].Path, MaxDepth)
		}
		layer, err := fsguard.Do(ctx, path, func() (Layer, error) { return openLayer(path, declared) }, func(l Layer) { _ = l.File.Close() })
		if err == nil {
			if err = chain.checkLayer(ctx, sc, &layer, seen); err != nil {
				closeRead(layer.File)
			}
		}
		if err != nil {
			chain.Close()
			if len(chain) > 0 {
				err = fault.Wrap(err, fault.Of(err), fault.Volume, "cannot open layer %d below %s", len(chain), chain[0].Path)
			}
			return nil, err
		}
		chain = append(chain, layer)
		if layer.Backing == nil {
			return chain, nil
		}
		if path, err = Locate(layer.Path, layer.Backing.Name); err != nil {
			chain.Close()
			return nil, err
		}
		declared = layer.Backing.Format
	}
}

// checkLayer checks one more layer of the chain. sc may restrict it to folders.
func (c Chain) checkLayer(ctx context.Context, sc scope.Scope, l *Layer, seen map[[2]uint64]string) error {
	err := errors.Join(l.checkLoop(seen), l.checkFolders(sc.Folders()), l.checkRecord())
	if err != nil || len(c) == 0 {
		return err
	}
	if l.Encrypted {
		return fault.New(fault.Unsupported, fault.Volume, "%s is encrypted, and only the uppermost layer can be; convert it (qemu-img convert)", l.Path)
	}
	return c[len(c)-1].checkOwnerMayRead(ctx, l)
}

// openLayer opens one layer.
func openLayer(path string, declared Format) (Layer, error) {
	f, err := Open(path)
	if err != nil {
		return Layer{}, err
	}
	layer := Layer{Path: path, File: f}
	if err = layer.inspect(declared); err != nil {
		_ = f.Close() // opened to read
		return Layer{}, err
	}
	return layer, nil
}

// OpenForQEMU opens a layer for QEMU. From now on the layer counts as in use, so that no client can upload
// another header to it: QEMU itself opens the file that the header names, and only the checked header is
// safe.
func (l *Layer) OpenForQEMU(mode int) (*os.File, error) {
	f, err := Reopen(int(l.File.Fd()), l.Path, mode)
	if err != nil {
		return nil, err
	}
	err = LockForQEMU(f)
	if err == nil {
		err = checkHasName(f)
	}
	if err == nil {
		err = l.CheckSameBacking(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkHasName refuses a file that was removed since it was opened: data written to it would be lost with
// its last user. Some FUSE file systems count no links, so the kernel is asked too; NFS renames an open
// file until it is closed.
func checkHasName(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return openFault(err, f.Name())
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	another := strings.HasPrefix(filepath.Base(name), ".nfs") && !strings.HasPrefix(filepath.Base(f.Name()), ".nfs")
	if err == nil && (another || st.Nlink == 0 && strings.HasSuffix(name, " (deleted)")) {
		return fault.New(fault.NotFound, fault.Volume, "%s has just been removed", f.Name())
	}
	return err
}

// checkLoop records the identity of a layer to find loops.
func (l *Layer) checkLoop(seen map[[2]uint64]string) error {
	if above, ok := seen[l.id]; ok {
		return fault.New(fault.Invalid, fault.Volume, "the backing chain has a loop: %s is also %s", l.Path, above)
	}
	seen[l.id] = l.Path
	return nil
}

func (l *Layer) inspect(declared Format) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(l.File.Fd()), &st); err != nil {
		return openFault(err, l.Path)
	}
	l.id, l.owner, l.Device = [2]uint64{st.Dev, st.Ino}, sandbox.User{UID: st.Uid, GID: st.Gid}, st.Mode&unix.S_IFMT == unix.S_IFBLK
	var err error
	if l.untrustedFS, err = safepath.UntrustedFS(l.File); err != nil {
		return openFault(err, l.Path)
	}
	if l.Info, err = Inspect(l.File, declared); err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Volume, "cannot use %s", l.Path)
	}
	switch {
	case declared == "" && l.Format != Raw && l.Format != ISO:
		return fault.New(fault.Invalid, fault.Volume,
			"%s looks like %s, but the layer above does not declare that; declare its format (qemu-img rebase -u -F %s)", l.Path, l.Format, l.Format)
	case l.OldEncryption:
		return fault.New(fault.Unsupported, fault.Volume, "%s has the old encryption of qcow, which is weak and not supported; convert it (qemu-img convert)", l.Path)
	case l.ExternalData:
		return fault.New(fault.Unsupported, fault.Volume, "%s keeps its data in an external file, which is not supported; convert it (qemu-img convert)", l.Path)
	}
	return nil
}

// Locate returns the path of the layer below an image from the name in the image's header, relative to the
// image. A layer that QEMU would reach over a network, or that is described in JSON, has no path.
func Locate(above, name string) (string, error) {
	if rest, ok := strings.CutPrefix(name, "file:"); ok {
		name = rest
	}
	if strings.ContainsRune(name, 0) || name == "" {
		return "", fault.New(fault.Invalid, fault.Volume, "%s names a backing file with an invalid file name", above)
	}
	if before, _, ok := strings.Cut(name, ":"); ok && !strings.Contains(before, "/") {
		return "", fault.New(fault.Unsupported, fault.Volume, "%s lies on %q, which is not a local file", above, name)
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(above), name)
	}
	return filepath.Clean(name), nil
}

// jsonName describes the chain as a "json:" file name for QEMU's tools.
func (c Chain) jsonName(first int) (string, error) {
	return named(c.describe(first))
}

func named(node map[string]any) (string, error) {
	text, err := json.Marshal(node)
	if err != nil {
		return "", fault.Wrap(err, fault.Internal, fault.Volume, "cannot describe a chain")
	}
	return "json:" + string(text), nil
}

// describeAbove describes an image that is written to, the first of the tool's files, above the chain in
// the files after it.
func (c Chain) describeAbove(format Format, encrypted bool) (string, error) {
	node := map[string]any{"driver": format, "file": map[string]any{
		"driver": "file", "filename": fmt.Sprintf("/proc/self/fd/%d", firstFile),
	}, "backing": c.describe(firstFile + 1)}
	if encrypted {
		node["encrypt"] = map[string]any{"format": "luks", "key-secret": intoKey}
	}
	return named(node)
}

// describe returns the chain as block nodes in QEMU's JSON, with the files by their descriptors, counted
// from first. Each layer has its format, and the lowest explicitly has no backing, so QEMU probes no
// format.
func (c Chain) describe(first int) map[string]any {
	var node map[string]any
	for i, layer := range slices.Backward(c) {
		upper := map[string]any{"driver": layer.driver(), "read-only": true, "file": map[string]any{
			"driver": layer.protocol(), "filename": fmt.Sprintf("/proc/self/fd/%d", first+i), "read-only": true,
		}}
		switch { // layers below are never encrypted
		case layer.Format == LUKS:
			upper["key-secret"] = fromKey
		case layer.Format == Qcow2 && layer.Encrypted:
			upper["encrypt"] = map[string]any{"format": "luks", "key-secret": fromKey}
		}
		if i < len(c)-1 {
			upper["backing"] = node
		} else if layer.Format.IsLayered() {
			upper["backing"] = nil
		}
		node = upper
	}
	return node
}

// driver returns QEMU's name of the layer's format.
func (l Layer) driver() string {
	if l.Format == ISO {
		return string(Raw)
	}
	return string(l.Format)
}

func (l Layer) protocol() string {
	if l.Device {
		return "host_device"
	}
	return "file"
}
