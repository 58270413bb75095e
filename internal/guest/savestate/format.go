package savestate

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
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
	SaveMagic     = "LibvirtQemudSave"
	SavePartial   = "LibvirtQemudPart"
	SaveVersion   = 2
	SaveHeaderLen = 92
	// SaveAlign is the alignment of the stream in bytes: direct I/O needs it.
	SaveAlign = 64 << 10
	// MaxSaveXML bounds the data read from an image, in bytes. An image may be hostile.
	MaxSaveXML = 16 << 20
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

// SaveHeader is the part of an image before the stream.
type SaveHeader struct {
	def     *domain.Definition // the parsed form of xml
	XML     string
	Running bool
}

// NewSaveHeader makes the header for a guest that was in phase was. dir is the run directory.
func NewSaveHeader(def *domain.Definition, dir string, o SaveOptions, was domain.State) (*SaveHeader, error) {
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
	h := &SaveHeader{def: unplaced(def, dir), Running: running}
	return h, h.format()
}

// format formats the definition, and checks that it can be parsed again.
func (h *SaveHeader) format() (err error) {
	if h.XML, err = domainxml.Format(h.def, domainxml.Style{Secure: true}); err == nil {
		_, err = parseSaved(h.XML)
	}
	return fault.Wrap(err, fault.Of(err), fault.Domain, "domain %q could not be restored from its image", h.def.Name)
}

// unplaced returns def without the socket paths that were chosen in run directory dir. The next instance chooses
// its own, and no client may name them.
func unplaced(def *domain.Definition, dir string) *domain.Definition {
	def = def.Clone()
	for _, b := range provision.Backends(def) {
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

// Write writes the header with the magic of an incomplete image, and leaves the file at the start of the
// stream.
func (h *SaveHeader) Write(f *os.File) error {
	length := (SaveHeaderLen+len(h.XML)+1+SaveAlign-1)/SaveAlign*SaveAlign - SaveHeaderLen
	b := make([]byte, SaveHeaderLen+length)
	copy(b, SavePartial)
	for i, v := range []uint32{SaveVersion, uint32(length), boolWord(h.Running), 0, 0} {
		binary.NativeEndian.PutUint32(b[16+4*i:], v)
	}
	copy(b[SaveHeaderLen:], h.XML)
	_, err := f.Write(b)
	return err
}

// Complete marks the image as complete, after everything else is synced to the disk.
func (h *SaveHeader) Complete(f *os.File) error {
	if err := f.Sync(); err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte(SaveMagic), 0); err != nil {
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
				err = Empty(f, at)
			}
			return err
		})
		if err != nil && f != nil {
			_, f = f.Close(), nil // the file stays: it belongs to another writer
		}
		return f, fault.Wrap(err, machine.Failure(err), fault.Host, "cannot make the image file %s", path)
	}, func(f *os.File) { _ = errors.Join(machine.Remove(path, held), f.Close()) })
}

// Empty truncates the file for a new image and locks it until it is closed, also by QEMU. Without the lock
// two guests could write into one image. at is the file's path, unless another writer has just completed
// and moved it.
func Empty(f *os.File, at string) error {
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

// ours reports whether a file belongs to the daemon and no other user can open it.
func ours(path string) bool {
	var s unix.Stat_t
	err := unix.Lstat(path, &s)
	return err == nil && int(s.Uid) == os.Geteuid() && s.Nlink == 1 && s.Mode&0o077 == 0
}

// WriteImage writes an image beside its final path, with fill and then complete. It renames the image when
// it is complete, so that an incomplete one is never taken for a complete one. It does not wait for a file
// system that hangs once ctx ends.
func WriteImage(ctx context.Context, sc scope.Scope, path string, fill, complete func(*os.File) error) error {
	f, err := createImage(ctx, Partial(path), sc.FoldersFor(path))
	if err != nil {
		return err
	}
	return fillImage(ctx, sc, f, path, fill, complete)
}

// fillImage is WriteImage for a file that exists already beside the image's path. It closes the file.
func fillImage(ctx context.Context, sc scope.Scope, f *os.File, path string, fill, complete func(*os.File) error) error {
	beside, held := Partial(path), sc.FoldersFor(path)
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
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), machine.CloseTime)
	defer stop()
	_ = fsguard.RunLong(ctx, beside, func() error {
		if err != nil {
			return errors.Join(machine.Remove(beside, held), f.Close())
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
			if err := os.Rename(Partial(at), at); err != nil {
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
		return errors.Join(err, machine.Remove(path, held))
	}
	return nil
}

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

// SavedImage is an opened image. Its file is positioned at the start of the stream.
type SavedImage struct {
	File    *os.File
	Def     *domain.Definition
	XML     string
	Running bool
	bypass  bool
	Managed bool // it is the guest's managed save image
}

// Touch updates the file's times only. It shows whether the file system takes changes.
func (i *SavedImage) Touch() error {
	return unix.Futimes(int(i.File.Fd()), nil)
}

// Close closes the image. It ignores a failure to uncache: the restore has succeeded.
func (i *SavedImage) Close() {
	if i.bypass {
		_ = uncache(i.File)
	}
	_ = i.File.Close()
}

// Paused reports whether the restored guest stays stopped. then overrides what the image says.
func (i *SavedImage) Paused(then domain.State) bool {
	if then == domain.NoState {
		return !i.Running
	}
	return then == domain.Paused
}

// OpenSaved opens an image and reads its definition. The caller must close the image.
func OpenSaved(ctx context.Context, r *machine.Registry, path string, o SaveOptions) (*SavedImage, error) {
	return fsguard.Do(ctx, path, func() (*SavedImage, error) { return OpenSavedNow(ctx, r, path, o) }, (*SavedImage).Close)
}

// OpenSavedNow opens a save image, and waits for no change of its header.
func OpenSavedNow(ctx context.Context, r *machine.Registry, path string, o SaveOptions) (i *SavedImage, err error) {
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
	real, leave, err := HeaderTurn(ctx, r, f)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := settleHeader(r, f, real); err != nil {
		return nil, err
	}
	return ReadSaved(f, o)
}

// ReadSaved reads the header and the definition of an image. The file is then at the start of the stream.
func ReadSaved(f *os.File, o SaveOptions) (*SavedImage, error) {
	head := make([]byte, SaveHeaderLen)
	if _, err := io.ReadFull(f, head); err != nil {
		return nil, err
	}
	switch magic := string(head[:16]); magic {
	case SaveMagic:
	case SavePartial:
		return nil, errors.New("it is incomplete: its writer failed or was killed")
	case SaveChanging:
		return nil, errors.New("a change of its definition was interrupted, and this daemon has no record of the old one; " +
			"open it with the daemon that was changing it, which repairs it, or use another copy of the image")
	default:
		return nil, errors.New("it is not a saved domain")
	}
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(head[16+4*i:]) }
	version, length, running, compressed := word(0), word(1), word(2), word(3)
	switch {
	case version != SaveVersion:
		return nil, fault.New(fault.Unsupported, fault.Config, "its layout is version %d, and only %d is supported", version, SaveVersion)
	case compressed != 0:
		return nil, fault.New(fault.Unsupported, fault.Config, "it is compressed, which is not supported")
	case length == 0 || length > MaxSaveXML:
		return nil, errors.New("its header is damaged")
	}
	data := make([]byte, length)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	text, _, _ := bytes.Cut(data, []byte{0})
	i := &SavedImage{File: f, XML: string(text), Running: running != 0, bypass: o.BypassCache}
	var err error
	if i.Def, err = parseSaved(i.XML); err != nil || o.XML == "" {
		return i, err
	}
	i.XML = o.XML
	i.Def, err = redefined(i.Def, o.XML)
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
	_, err = Completed(def)
	return def, err
}

// Load passes the stream to a QEMU that waits for it, and returns when QEMU has read all of it.
func (i *SavedImage) Load(ctx context.Context, s *qmp.Session) error {
	if err := s.ExecuteFD(ctx, i.File, "getfd", map[string]any{"fdname": "lodge-restore"}, nil); err != nil {
		return err
	}
	if err := s.Execute(ctx, "migrate-incoming", map[string]any{"uri": "fd:lodge-restore"}, nil); err != nil {
		return err
	}
	return machine.FollowMigration(ctx, s, &machine.Progress{})
}
