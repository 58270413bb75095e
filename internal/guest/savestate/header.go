package savestate

import (
	"encoding/binary"
	"os"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/domain"
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
	h := &SaveHeader{def: withoutSocketPaths(def, dir), Running: running}
	return h, h.format()
}

// format formats the definition, and checks that it can be parsed again.
func (h *SaveHeader) format() (err error) {
	if h.XML, err = domainxml.Format(h.def, domainxml.Style{Secure: true}); err == nil {
		_, err = parseSaved(h.XML)
	}
	return fault.Wrap(err, fault.Of(err), fault.Domain, "domain %q could not be restored from its image", h.def.Name)
}

// withoutSocketPaths returns def without the socket paths that were chosen in run directory dir. The next
// instance chooses its own, and no client may name them.
func withoutSocketPaths(def *domain.Definition, dir string) *domain.Definition {
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
