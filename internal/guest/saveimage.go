package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A saved image is a header, the definition as XML, and QEMU's migration stream.
// The layout is libvirt's, version 2, so that either reads the other's images:
//
//	offset 0   magic, 16 bytes
//	       16  version, length of the data, was running, compression, offset of
//	           the cookie in the data: u32 each, in the host's byte order
//	       36  56 bytes unused
//	       92  data: the XML with its NUL, the cookie if any, zeros
//	       92 + length: the stream
const (
	saveMagic     = "LibvirtQemudSave"
	savePartial   = "LibvirtQemudPart"
	saveVersion   = 2
	saveHeaderLen = 92
	// saveAlign is the alignment of the stream in bytes: direct I/O needs it.
	saveAlign = 64 << 10
	// maxSaveXML bounds the data read from an image, in bytes. An image may be hostile.
	maxSaveXML = 16 << 20
)

// checkPlace refuses paths where no image can be written, and paths that the journal cannot hold. The
// journal is JSON, which would replace bytes that are not UTF-8, and the next daemon could not find the
// image.
func checkPlace(verb, path string) error {
	switch {
	case !filepath.IsAbs(path) || !utf8.ValidString(path):
		return fault.New(fault.Invalid, fault.Call, "cannot %s to %q: the path must be absolute and valid UTF-8", verb, path)
	case image.InDev(filepath.Clean(path)): // it would replace a device node, and lie in the host's memory
		return fault.New(fault.Unsupported, fault.Call, "cannot %s to %q: images are files, and /dev holds devices and lies in memory; choose another path", verb, path)
	}
	return nil
}

// saveHeader is the part of an image before the stream.
type saveHeader struct {
	def     *domain.Definition // the parsed form of xml
	xml     string
	running bool
}

// newSaveHeader makes the header for a guest that was in phase was. dir is the run directory.
func newSaveHeader(def *domain.Definition, dir string, o SaveOptions, was domain.State) (*saveHeader, error) {
	if o.XML != "" {
		changed, err := redefined(def, o.XML)
		if err != nil {
			return nil, err
		}
		def = changed
	}
	running := was == domain.Running || was == domain.Blocked
	if o.Then != domain.NoState {
		running = o.Then == domain.Running
	}
	h := &saveHeader{def: unplaced(def, dir), running: running}
	return h, h.format()
}

// format formats the definition, and checks that it can be parsed again.
func (h *saveHeader) format() (err error) {
	if h.xml, err = domainxml.Format(h.def, domainxml.Style{Secure: true}); err == nil {
		_, err = parseSaved(h.xml)
	}
	return fault.Wrap(err, fault.Of(err), fault.Domain, "domain %q could not be restored from its image", h.def.Name)
}

// unplaced returns def without the socket paths that were chosen in run directory dir. The next run chooses
// its own, and no client may name them.
func unplaced(def *domain.Definition, dir string) *domain.Definition {
	def = def.Clone()
	for _, b := range backends(def) {
		if strings.HasPrefix(b.Path, dir+"/") {
			b.Path, b.Mode = "", ""
		}
	}
	for _, d := range def.Devices.Graphics {
		for i := range d.Listens {
			if strings.HasPrefix(d.Listens[i].Socket, dir+"/") {
				d.Listens[i].Socket = ""
			}
		}
	}
	return def
}

// write writes the header with the magic of an incomplete image, and leaves the file at the start of the
// stream.
func (h *saveHeader) write(f *os.File) error {
	length := (saveHeaderLen+len(h.xml)+1+saveAlign-1)/saveAlign*saveAlign - saveHeaderLen
	b := make([]byte, saveHeaderLen+length)
	copy(b, savePartial)
	for i, v := range []uint32{saveVersion, uint32(length), boolWord(h.running), 0, 0} {
		binary.NativeEndian.PutUint32(b[16+4*i:], v)
	}
	copy(b[saveHeaderLen:], h.xml)
	_, err := f.Write(b)
	return err
}

// complete marks the image as complete, after everything else is synced to the disk.
func (h *saveHeader) complete(f *os.File) error {
	if err := f.Sync(); err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte(saveMagic), 0); err != nil {
		return err
	}
	return f.Sync()
}

func boolWord(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// createImage creates the file of an image, readable by its owner only, because guest memory holds secrets.
// It reuses no other user's file and follows no link: a file at that path was left by a killed daemon, or
// is a trap. held lists the folders to which the client that named the path is restricted.
func createImage(ctx context.Context, path string, held []string) (*os.File, error) {
	return fsguard.Do(ctx, path, func() (f *os.File, err error) {
		err = image.WithParent(path, held, func(at string) error {
			how := 0
			if !ours(at) {
				_ = unix.Unlink(at) // if it cannot be removed, the open fails
				how = os.O_CREATE | os.O_EXCL
			}
			if f, err = os.OpenFile(at, how|os.O_RDWR|unix.O_NOFOLLOW, 0o600); err == nil {
				err = empty(f, at)
			}
			return err
		})
		if err != nil && f != nil {
			_, f = f.Close(), nil // the file stays: it belongs to another writer
		}
		return f, fault.Wrap(err, failure(err), fault.Host, "cannot make the image file %s", path)
	}, func(f *os.File) { _ = errors.Join(remove(path, held), f.Close()) })
}

// empty truncates the file for a new image and locks it until it is closed, also by QEMU. Without the lock
// two guests could write into one image. at is the file's path, unless another writer has just completed
// and moved it.
func empty(f *os.File, at string) error {
	var s, there unix.Stat_t
	busy := errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) // some file systems have no locks
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return err
	}
	if err := unix.Lstat(at, &there); busy || err != nil || there.Dev != s.Dev || there.Ino != s.Ino {
		return fault.New(fault.Busy, fault.Host, "another image is being written to the same path; wait for its end, or choose another path")
	}
	if s.Mode&unix.S_IFMT != unix.S_IFREG { // a pipe
		return nil
	}
	return f.Truncate(0)
}

// remove removes a file that was named by a client restricted to the folders held.
func remove(path string, held []string) error {
	return image.WithParent(path, held, os.Remove)
}

// ours reports whether a file belongs to the daemon and no other user can open it.
func ours(path string) bool {
	var s unix.Stat_t
	err := unix.Lstat(path, &s)
	return err == nil && int(s.Uid) == os.Geteuid() && s.Nlink == 1 && s.Mode&0o077 == 0
}

// writeImage writes an image beside its final path, with fill and then complete. It renames the image when
// it is complete, so that an incomplete one is never taken for a complete one. It does not wait for a file
// system that hangs once ctx ends.
func writeImage(ctx context.Context, sc scope.Scope, path string, fill, complete func(*os.File) error) error {
	f, err := createImage(ctx, partial(path), sc.FoldersOf(path))
	if err != nil {
		return err
	}
	return fillImage(ctx, sc, f, path, fill, complete)
}

// fillImage is writeImage for a file that exists already beside the image's path. It closes the file.
func fillImage(ctx context.Context, sc scope.Scope, f *os.File, path string, fill, complete func(*os.File) error) error {
	beside, held := partial(path), sc.FoldersOf(path)
	failpoint.Reach("image.created")
	err := fill(f)
	if err == nil {
		failpoint.Reach("image.filled")
		err = fsguard.RunLong(ctx, beside, func() error { return complete(f) })
	}
	if err == nil {
		failpoint.Reach("image.complete")
		err = placeImage(ctx, path, held)
		failpoint.Reach("image.placed")
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer stop()
	_ = fsguard.RunLong(ctx, beside, func() error {
		if err != nil {
			return errors.Join(remove(beside, held), f.Close())
		}
		return f.Close() // everything was synced before
	})
	return err
}

// placeImage renames a complete image to its final path and syncs the folder, so that the image survives a
// loss of power. The guest ends next.
func placeImage(ctx context.Context, path string, held []string) error {
	var folder *os.File
	err := fsguard.Run(ctx, path, func() error {
		return image.WithParent(path, held, func(at string) error {
			if err := os.Rename(partial(at), at); err != nil {
				return err
			}
			folder, _ = os.Open(filepath.Dir(at)) // an unreadable folder is left to its file system
			return nil
		})
	})
	if err != nil || folder == nil {
		return err
	}
	err = fsguard.RunLong(ctx, path, func() error {
		defer func() { _ = folder.Close() }()
		return folder.Sync()
	})
	if errors.Is(err, unix.EINVAL) {
		return nil // this file system cannot sync folders
	}
	if err != nil {
		return errors.Join(err, remove(path, held))
	}
	return nil
}

// closeTime is how long to wait for a file system to drop a file that is no longer needed.
const closeTime = 2 * time.Second

// uncache tells the kernel that an image's pages are no longer needed. QEMU moves the stream in unaligned
// pieces, so O_DIRECT cannot be used instead.
func uncache(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var refused error
	err = raw.Control(func(fd uintptr) { refused = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED) })
	return fault.Wrap(errors.Join(err, refused), fault.Failed, fault.Host, "cannot keep the image out of the page cache")
}

// savedImage is an opened image. Its file is positioned at the start of the stream.
type savedImage struct {
	file    *os.File
	def     *domain.Definition
	xml     string
	running bool
	bypass  bool
	managed bool // it is the guest's managed save image
}

// touch updates the file's times only. It shows whether the file system takes changes.
func (i *savedImage) touch() error {
	return unix.Futimes(int(i.file.Fd()), nil)
}

// close closes the image. It ignores a failure to uncache: the restore has succeeded.
func (i *savedImage) close() {
	if i.bypass {
		_ = uncache(i.file)
	}
	_ = i.file.Close()
}

// paused reports whether the restored guest stays stopped. then overrides what the image says.
func (i *savedImage) paused(then domain.State) bool {
	if then == domain.NoState {
		return !i.running
	}
	return then == domain.Paused
}

// openSaved opens an image and reads its definition. The caller must close the image.
func (r *Registry) openSaved(ctx context.Context, path string, o SaveOptions) (*savedImage, error) {
	return fsguard.Do(ctx, path, func() (*savedImage, error) { return r.openSavedNow(ctx, path, o) }, (*savedImage).close)
}

func (r *Registry) openSavedNow(ctx context.Context, path string, o SaveOptions) (i *savedImage, err error) {
	f, err := image.Open(path)
	if err != nil {
		return nil, err
	}
	if err := image.CheckNotWritten(f); err != nil { // any user could have written its definition
		_ = f.Close() // opened for reading only
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			err = fault.Wrap(err, fault.Failed, fault.Config, "cannot read the saved image %s", path)
		}
	}()
	real, leave, err := r.headerTurn(ctx, f)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := r.settleHeader(f, real); err != nil {
		return nil, err
	}
	return readSaved(f, o)
}

// readSaved reads the header and the definition of an image. The file is then at the start of the stream.
func readSaved(f *os.File, o SaveOptions) (*savedImage, error) {
	head := make([]byte, saveHeaderLen)
	if _, err := io.ReadFull(f, head); err != nil {
		return nil, err
	}
	switch magic := string(head[:16]); magic {
	case saveMagic:
	case savePartial:
		return nil, errors.New("it is incomplete: its writer failed or was killed")
	case saveChanging:
		return nil, errors.New("a change of its definition was interrupted, and this daemon has no record of the old one; " +
			"open it with the daemon that was changing it, which repairs it, or use another copy of the image")
	default:
		return nil, errors.New("it is not a saved domain")
	}
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(head[16+4*i:]) }
	version, length, running, compressed := word(0), word(1), word(2), word(3)
	switch {
	case version != saveVersion:
		return nil, fault.New(fault.Unsupported, fault.Config, "its layout is version %d, and only %d is supported", version, saveVersion)
	case compressed != 0:
		return nil, fault.New(fault.Unsupported, fault.Config, "it is compressed, which is not supported")
	case length == 0 || length > maxSaveXML:
		return nil, errors.New("its header is damaged")
	}
	data := make([]byte, length)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	text, _, _ := bytes.Cut(data, []byte{0})
	i := &savedImage{file: f, xml: string(text), running: running != 0, bypass: o.BypassCache}
	var err error
	if i.def, err = parseSaved(i.xml); err != nil || o.XML == "" {
		return i, err
	}
	i.xml = o.XML
	i.def, err = redefined(i.def, o.XML)
	return i, err
}

// parseSaved parses the definition in an image. It refuses one from which no guest can be restored.
func parseSaved(text string) (*domain.Definition, error) {
	def, err := domainxml.Parse(text, domainxml.Options{})
	if err != nil {
		return nil, err
	}
	if def.UUID == "" { // a guest's folders are named by its UUID
		return nil, fault.New(fault.Invalid, fault.XML, "the definition in it names no UUID")
	}
	_, err = completed(def)
	return def, err
}

// load passes the stream to a QEMU that waits for it, and returns when QEMU has read all of it.
func (i *savedImage) load(ctx context.Context, s *qmp.Session) error {
	if err := s.ExecuteFD(ctx, i.file, "getfd", map[string]any{"fdname": "lodge-restore"}, nil); err != nil {
		return err
	}
	if err := s.Execute(ctx, "migrate-incoming", map[string]any{"uri": "fd:lodge-restore"}, nil); err != nil {
		return err
	}
	return followMigration(ctx, s, &progress{})
}
