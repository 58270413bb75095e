package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"syscall"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Format is the name of an image format in libvirt's XML.
type Format string

// The formats that Inspect distinguishes. A LUKS container counts as raw and encrypted
// if its format is not declared.
const (
	Raw   Format = "raw"
	ISO   Format = "iso"
	Qcow  Format = "qcow"
	Qcow2 Format = "qcow2"
	QED   Format = "qed"
	VDI   Format = "vdi"
	VMDK  Format = "vmdk"
	VPC   Format = "vpc"
	VHDX  Format = "vhdx"
)

// Formats lists all known formats, in the order of libvirt's XML.
func Formats() []Format { return []Format{Raw, ISO, VPC, VDI, VHDX, Qcow, Qcow2, QED, VMDK} }

// maxVirtual is the largest virtual size, in bytes: a file offset has 63 bits.
const maxVirtual = 1<<63 - 1

// Info describes one image without the layers below it.
type Info struct {
	Format Format
	// Virtual is the size that a guest sees, in bytes.
	Virtual uint64
	// Allocated is the space on disk now and Physical the end of the file, in bytes. For a block device
	// both are equal.
	Allocated, Physical uint64
	// Backing is the layer below, or nil.
	Backing   *Backing
	Encrypted bool
	// OldEncryption: the image has qcow's own encryption, which is weak and is not opened.
	OldEncryption bool
	// The following fields are for qcow2 only.
	Compat        string // 0.10 or 1.1
	ClusterSize   uint64 // bytes
	LazyRefcounts bool
	ExtendedL2    bool
	// ExternalData: the data lies in another file, named in the header.
	ExternalData bool
}

// Backing is the layer below as the header names it, unchecked.
type Backing struct {
	Name string
	// Format is "" if the header declares none.
	Format Format
}

// file is read for headers.
type file interface {
	io.ReaderAt
	io.Seeker
	Stat() (os.FileInfo, error)
}

// Inspect reads the header of an open image. A declared format is read as that format only; with "" the
// format is probed first. The sizes on disk are set even if the header is broken and an error is returned.
func Inspect(f file, declared Format) (Info, error) {
	info := Info{Format: declared}
	if err := info.measure(f); err != nil {
		return info, err
	}
	if declared == "" {
		probed, err := Probe(f)
		if err != nil {
			return info, err
		}
		info.Format = probed
	}
	info.Virtual = info.Physical
	if info.Format == ISO || info.Format == Raw && declared != "" {
		return info, nil
	}
	if err := info.read(f); err != nil {
		return info, fault.Wrap(err, fault.Invalid, fault.Volume, "cannot read %s header", info.Format)
	}
	if info.Virtual > maxVirtual {
		return info, fault.New(fault.Invalid, fault.Volume, "%s header claims %d bytes, more than a disk can have", info.Format, info.Virtual)
	}
	return info, nil
}

// measure sets the sizes on disk of a file or device.
func (info *Info) measure(f file) error {
	st, err := f.Stat()
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot stat image")
	}
	info.Physical = uint64(st.Size())
	info.Allocated = info.Physical
	switch mode := st.Mode(); {
	case mode.IsRegular():
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			info.Allocated = uint64(sys.Blocks) * 512
		}
	case mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0:
		end, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Volume, "cannot find the size of block device")
		}
		info.Physical, info.Allocated = uint64(end), uint64(end)
	default:
		return fault.New(fault.Invalid, fault.Volume, "neither a file nor a block device")
	}
	return nil
}

// magics are the first bytes of formats, all within headBytes.
var magics = []struct {
	at     int
	magic  string
	format Format
}{
	{0, "QFI\xfb\x00\x00\x00\x01", Qcow},
	{0, "QFI\xfb\x00\x00\x00\x02", Qcow2},
	{0, "QFI\xfb\x00\x00\x00\x03", Qcow2},
	{0, "QED\x00", QED},
	{0x40, "\x7f\x10\xda\xbe", VDI},
	{0, "KDMV", VMDK},
	{0, "COWD", VMDK},
	{0, "# Disk DescriptorFile", VMDK},
	{0, "vhdxfile", VHDX},
	{0, "conectix", VPC},
}

const headBytes = 0x44

// A CD identifies itself after the first 16 sectors, which are reserved for the system.
const (
	isoMagic   = "CD001"
	isoMagicAt = 32769
)

// Probe finds the format by magic numbers; raw if none matches. It is for images without a declared
// format: the answer is only as trustworthy as the writer of the image.
func Probe(r io.ReaderAt) (Format, error) {
	head, err := readUpTo(r, 0, headBytes)
	if err != nil {
		return "", err
	}
	for _, m := range magics {
		if len(head) >= m.at && bytes.HasPrefix(head[m.at:], []byte(m.magic)) {
			return m.format, nil
		}
	}
	volume, err := readUpTo(r, isoMagicAt, len(isoMagic))
	if string(volume) == isoMagic {
		return ISO, err
	}
	return Raw, err
}

// readUpTo reads up to n bytes at an offset; at the end of the image it returns fewer and no error.
func readUpTo(r io.ReaderAt, at int64, n int) ([]byte, error) {
	buf := make([]byte, n)
	got, err := r.ReadAt(buf, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fault.Wrap(err, fault.Failed, fault.Volume, "cannot read image")
	}
	return buf[:got], nil
}

// readExactly reads exactly n bytes at an offset from a header.
func readExactly(r io.ReaderAt, at uint64, n int) ([]byte, error) {
	if at > maxVirtual {
		return nil, errors.New("an offset lies outside the image")
	}
	buf, err := readUpTo(r, int64(at), n)
	if err == nil && len(buf) < n {
		err = errors.New("the image ends within its header")
	}
	return buf, err
}

func (info *Info) read(r io.ReaderAt) error {
	switch info.Format {
	case Raw:
		return info.readLUKS(r)
	case Qcow:
		return info.readQcow(r)
	case Qcow2:
		return info.readQcow2(r)
	case QED:
		return info.readQED(r)
	case VDI:
		return info.readVDI(r)
	case VMDK:
		return info.readVMDK(r)
	case VPC:
		return info.readVPC(r)
	case VHDX:
		return info.readVHDX(r)
	case LUKS:
		return info.readDeclaredLUKS(r)
	case ISO:
		return nil
	}
	return fault.New(fault.Unsupported, fault.Config, "format %q is not known", info.Format)
}

// readLUKS finds a LUKS container in an image that is otherwise raw. Version 1 says
// where its data starts; the guest does not see the bytes before it.
func (info *Info) readLUKS(r io.ReaderAt) error {
	head, err := readUpTo(r, 0, 108)
	if err != nil || len(head) < 108 || string(head[:6]) != luksMagic {
		return err
	}
	info.Encrypted = true
	if binary.BigEndian.Uint16(head[6:]) == 1 {
		payload := uint64(binary.BigEndian.Uint32(head[104:])) * 512
		info.Virtual -= min(payload, info.Virtual)
	}
	return nil
}
