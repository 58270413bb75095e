package savestate

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

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

// Close closes the image. It ignores a failure of dropPageCache: the restore has succeeded.
func (i *SavedImage) Close() {
	if i.bypass {
		_ = dropPageCache(i.File)
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
	return fsguard.Do(ctx, path, func() (*SavedImage, error) { return OpenSavedNoWait(ctx, r, path, o) }, (*SavedImage).Close)
}

// OpenSavedNoWait opens a save image, and waits for no change of its header.
func OpenSavedNoWait(ctx context.Context, r *machine.Registry, path string, o SaveOptions) (i *SavedImage, err error) {
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
	real, leave, err := LockHeader(ctx, r, f)
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
