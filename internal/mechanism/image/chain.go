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

// MaxDepth is how many layers a chain may have; a longer one is an attack or
// a mistake, and QEMU would take minutes to open it.
const MaxDepth = 200

// Open opens an image to read. Names may come from hostile headers: nothing
// but files and block devices is opened, because to open a device node of
// another sort can already do harm, and no open waits for a peer.
func Open(path string) (*os.File, error) {
	return OpenAs(path, unix.O_RDONLY)
}

// OpenAs is Open with another access mode: unix.O_RDONLY or unix.O_RDWR.
func OpenAs(path string, mode int) (*os.File, error) { return OpenHeld(path, mode, nil) }

// OpenHeld is OpenAs of what a client has named that is held to folders.
func OpenHeld(path string, mode int, folders []string) (f *os.File, err error) {
	err = At(path, folders, func(at string, nofollow int) error {
		fd, err := unix.Open(at, unix.O_PATH|unix.O_CLOEXEC|nofollow, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor has nothing to lose
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return unix.ELOOP
		}
		f, err = Reopen(fd, path, mode)
		return err
	})
	if told := (*fault.Error)(nil); err != nil && !errors.As(err, &told) { // refused on the way
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

// openFault says why an image cannot be opened. Root, whom no local file system
// refuses, is told who does.
func openFault(err error, path string) error {
	kind := fault.Failed
	if errors.Is(err, unix.EACCES) {
		return fault.Wrap(err, kind, fault.Volume, "cannot open image %s: its file system refuses the daemon, and so decides by itself who may open what, "+
			"as NFS with root_squash does and FUSE without allow_other; export it with no_root_squash, or let everybody use the file (chmod o+rw, and o+x its directories)", path)
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
	// Device says that it is a block device and no file.
	Device bool

	id [2]uint64    // device and inode
	of sandbox.User // whose it is
	// claims says that its file system says whose anything on it is: see way.Claims.
	claims bool
}

// Chain is an image with all that lies below it, topmost first.
type Chain []Layer

// Close closes every layer.
func (c Chain) Close() {
	files := make([]*os.File, len(c))
	for i, l := range c {
		files[i] = l.File
	}
	closeRead(files...)
}

// Has says whether a layer is one of the chain's, under whatever name.
func (c Chain) Has(l Layer) bool {
	return slices.ContainsFunc(c, func(one Layer) bool { return one.id == l.id })
}

// NameBelow gives the name by which the header of one layer may call a lower one: its path or, if relative is
// asked for, a name from where the layer is. There is none where a header on the way has a path.
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
			return "", fault.New(fault.WrongState, fault.Domain, "can't keep relative backing relationship: the header of %s has a whole path, or none (%q)", l.Path, next)
		}
		name = filepath.Join(filepath.Dir(name), next)
	}
	return name, nil
}

// closeTime is how long a caller waits for the closing of files that were opened
// to read. Some file systems ask their server even for that.
const closeTime = time.Second

func closeRead(files ...*os.File) {
	if len(files) == 0 {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), closeTime)
	defer stop()
	_ = fsguard.Outlast(ctx, files[0].Name(), func() error {
		for _, f := range files {
			_ = f.Close() // nothing was written
		}
		return nil
	})
}

// OpenChain opens an image of a declared format and every layer below it. It
// is bounded in depth and refuses loops, layers in other files than the
// headers' own, and a layer whose format nobody declared and that is not raw:
// to follow that one would be to believe whoever wrote it. A file system that
// does not answer holds its caller no longer than ctx.
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
			if err = chain.admit(ctx, sc, &layer, seen); err != nil {
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

// admit checks one more layer of the chain, which its context may hold to folders.
func (c Chain) admit(ctx context.Context, sc scope.Scope, l *Layer, seen map[[2]uint64]string) error {
	err := errors.Join(l.enter(seen), l.within(sc.Folders()), l.checkLent())
	if err != nil || len(c) == 0 {
		return err
	}
	if l.Encrypted {
		return fault.New(fault.Unsupported, fault.Volume, "%s is encrypted, and only the uppermost layer can be; convert it (qemu-img convert)", l.Path)
	}
	return c[len(c)-1].leads(ctx, l)
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

// HandOut opens a layer as QEMU is to use it. From here on it is seen to be in use, so that nobody uploads another header to
// it: what that names for the layer's data, and QEMU opens by itself, was looked at.
func (l *Layer) HandOut(mode int) (*os.File, error) {
	f, err := Reopen(int(l.File.Fd()), l.Path, mode)
	if err != nil {
		return nil, err
	}
	err = Claim(f)
	if err == nil {
		err = hasName(f)
	}
	if err == nil {
		err = l.LikeIn(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// hasName refuses a file that was removed since it was found: what is written there goes with its last user.
// Some file systems in user space count no names, so the kernel is asked, too; and NFS gives what is open another name
// until it is closed.
func hasName(f *os.File) error {
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

// enter notes a layer's identity to find loops.
func (l *Layer) enter(seen map[[2]uint64]string) error {
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
	l.id, l.of, l.Device = [2]uint64{st.Dev, st.Ino}, sandbox.User{UID: st.Uid, GID: st.Gid}, st.Mode&unix.S_IFMT == unix.S_IFBLK
	var err error
	if l.claims, err = safepath.Claims(l.File); err != nil {
		return openFault(err, l.Path)
	}
	if l.Info, err = Inspect(l.File, declared); err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Volume, "cannot use %s", l.Path)
	}
	switch {
	case declared == "" && l.Format != Raw && l.Format != ISO:
		return fault.New(fault.Invalid, fault.Volume,
			"%s looks like %s and the layer above does not say so; declare its format (qemu-img rebase -u -F %s)", l.Path, l.Format, l.Format)
	case l.Old:
		return fault.New(fault.Unsupported, fault.Volume, "%s is encrypted in the old way of qcow, which protects little and is not opened; convert it (qemu-img convert)", l.Path)
	case l.External:
		return fault.New(fault.Unsupported, fault.Volume, "%s keeps its data in another file, which its header names; that is not followed", l.Path)
	}
	return nil
}

// Locate gives the path of a layer below an image, from the name in the
// image's header: relative to where the image is. Layers that QEMU would reach
// over a network, or that are described in JSON, have no path.
func Locate(above, name string) (string, error) {
	if rest, ok := strings.CutPrefix(name, "file:"); ok {
		name = rest
	}
	if strings.ContainsRune(name, 0) || name == "" {
		return "", fault.New(fault.Invalid, fault.Volume, "%s names a backing file that is no file name", above)
	}
	if before, _, ok := strings.Cut(name, ":"); ok && !strings.Contains(before, "/") {
		return "", fault.New(fault.Unsupported, fault.Volume, "%s lies on %q, which is not a local file", above, name)
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(above), name)
	}
	return filepath.Clean(name), nil
}

// pseudoName gives the chain as the file name by which QEMU's tools take a
// description of block nodes.
func (c Chain) pseudoName(first int) (string, error) {
	return named(c.describe(first))
}

func named(node map[string]any) (string, error) {
	text, err := json.Marshal(node)
	if err != nil {
		return "", fault.Wrap(err, fault.Internal, fault.Volume, "cannot describe a chain")
	}
	return "json:" + string(text), nil
}

// under gives an image that is written to, the first of the tool's files, with the chain below it
// in those that follow.
func (c Chain) under(format Format, encrypted bool) (string, error) {
	node := map[string]any{"driver": format, "file": map[string]any{
		"driver": "file", "filename": fmt.Sprintf("/proc/self/fd/%d", firstFile),
	}, "backing": c.describe(firstFile + 1)}
	if encrypted {
		node["encrypt"] = map[string]any{"format": "luks", "key-secret": intoKey}
	}
	return named(node)
}

// describe gives the chain as QEMU's description of block nodes in JSON, with
// the files by their descriptors from first on: each layer with its format and
// the lowest explicitly without anything below, so that QEMU probes nothing.
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

// driver gives QEMU's name of the layer's format.
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
