package image

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// sector is the unit of sizes in several formats, in bytes.
const sector = 512

// qedBackingIsRaw is the feature bit by which QED declares its backing file raw.
const qedBackingIsRaw = 1 << 2

func (info *Info) readQED(r io.ReaderAt) error {
	h, err := readExactly(r, 0, 64)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	if string(h[:4]) != "QED\x00" {
		return errors.New("the magic number does not match")
	}
	info.Virtual = le.Uint64(h[48:])
	at, size := le.Uint32(h[56:]), le.Uint32(h[60:])
	if features := le.Uint64(h[16:]); features&1 == 0 {
		return nil
	} else if features&qedBackingIsRaw != 0 {
		info.Backing = &Backing{Format: Raw}
	} else {
		info.Backing = &Backing{}
	}
	if size > maxBackingName {
		return fmt.Errorf("a backing file name of %d bytes is too long", size)
	}
	name, err := readExactly(r, uint64(at), int(size))
	info.Backing.Name = string(name)
	return err
}

func (info *Info) readVDI(r io.ReaderAt) error {
	h, err := readExactly(r, 0, 0x178)
	if err != nil {
		return err
	}
	if string(h[0x40:0x44]) != "\x7f\x10\xda\xbe" {
		return errors.New("the magic number does not match")
	}
	info.Virtual = binary.LittleEndian.Uint64(h[0x170:])
	return nil
}

// vpcBySize are the creators whose footer holds the true size. For all others the geometry counts, which
// may be smaller.
var vpcBySize = []string{"win ", "qem2", "d2v ", "tap\x00", "vs  ", "CTXS"}

func (info *Info) readVPC(r io.ReaderAt) error {
	h, err := readExactly(r, 0, 64)
	if err != nil {
		return err
	}
	if string(h[:8]) != "conectix" {
		return errors.New("the magic number does not match")
	}
	be := binary.BigEndian
	creator := string(h[28:32])
	if slices.Contains(vpcBySize, creator) {
		info.Virtual = be.Uint64(h[48:])
		return nil
	}
	cylinders, heads, sectors := uint64(be.Uint16(h[56:])), uint64(h[58]), uint64(h[59])
	info.Virtual = cylinders * heads * sectors * sector
	return nil
}

// A VHDX finds its size in three steps: a region table at a fixed place names the
// metadata region, and the metadata table there names the item that holds the size.
const (
	vhdxRegions    = 192 << 10
	vhdxMaxEntries = 2047
)

var (
	vhdxMetadata = []byte("\x06\xa2\x7c\x8b\x90\x47\x9a\x4b\xb8\xfe\x57\x5f\x05\x0f\x88\x6e")
	vhdxSize     = []byte("\x24\x42\xa5\x2f\x1b\xcd\x76\x48\xb2\x11\x5d\xbe\xd8\x3b\xf4\xb8")
)

func (info *Info) readVHDX(r io.ReaderAt) error {
	le := binary.LittleEndian
	region, err := vhdxEntry(r, vhdxRegions, "regi", 8, 16, vhdxMetadata)
	if err != nil {
		return err
	}
	table := le.Uint64(region[16:])
	item, err := vhdxEntry(r, table, "metadata", 10, 32, vhdxSize)
	if err != nil {
		return err
	}
	at, carry := bits.Add64(table, uint64(le.Uint32(item[16:])), 0)
	if carry != 0 {
		return errors.New("the size lies outside the image")
	}
	size, err := readExactly(r, at, 8)
	if err != nil {
		return err
	}
	info.Virtual = le.Uint64(size)
	return nil
}

// vhdxEntry finds an entry by its identity in a table that starts with a
// signature and holds its count at countAt. Both tables have entries of 32 bytes.
func vhdxEntry(r io.ReaderAt, table uint64, signature string, countAt, header int, id []byte) ([]byte, error) {
	h, err := readExactly(r, table, header)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(h, []byte(signature)) {
		return nil, fmt.Errorf("no %q table where it should be", signature)
	}
	count := int(binary.LittleEndian.Uint16(h[countAt:]))
	if count > vhdxMaxEntries {
		return nil, fmt.Errorf("a table of %d entries is too long", count)
	}
	for i := range count {
		entry, err := readExactly(r, table+uint64(header+32*i), 32)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(entry[:16], id) {
			return entry, nil
		}
	}
	return nil, fmt.Errorf("the %q table lacks an entry", signature)
}

// maxDescriptor bounds the text that describes a VMDK, as QEMU does.
const maxDescriptor = 20 * sector

func (info *Info) readVMDK(r io.ReaderAt) error {
	h, err := readUpTo(r, 0, 64)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	switch {
	case bytes.HasPrefix(h, []byte("# Disk DescriptorFile")):
		return info.readDescriptor(r, 0, maxDescriptor)
	case len(h) == 64 && string(h[:4]) == "COWD":
		info.Virtual = uint64(le.Uint32(h[12:])) * sector
		return nil
	case len(h) == 64 && string(h[:4]) == "KDMV":
		capacity := le.Uint64(h[12:])
		at, size := le.Uint64(h[28:]), le.Uint64(h[36:])
		if capacity > maxVirtual/sector || at > maxVirtual/sector {
			return errors.New("a size is out of range")
		}
		if at == 0 {
			info.Virtual = capacity * sector
			return nil
		}
		if err := info.readDescriptor(r, int64(at)*sector, int(min(size, maxDescriptor/sector))*sector); err != nil {
			return err
		}
		info.ExternalData = capacity == 0
		if capacity != 0 {
			info.Virtual = capacity * sector
		}
		return nil
	}
	return errors.New("the magic number does not match")
}

// readDescriptor sums up the extents of a VMDK's description and finds its
// parent. Extents of a description that stands alone lie in other files.
func (info *Info) readDescriptor(r io.ReaderAt, at int64, size int) error {
	text, err := readUpTo(r, at, size)
	if err != nil {
		return err
	}
	info.ExternalData = at == 0
	info.Virtual = 0
	lines := bufio.NewScanner(bytes.NewReader(bytes.TrimRight(text, "\x00")))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if parent, ok := strings.CutPrefix(line, "parentFileNameHint="); ok {
			name := strings.Trim(parent, `"`)
			if len(name) > maxBackingName { // QEMU refuses it too
				return fmt.Errorf("a backing file name of %d bytes is too long", len(name))
			}
			info.Backing = &Backing{Name: name, Format: VMDK}
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[0] != "RW" && fields[0] != "RDONLY" && fields[0] != "NOACCESS" {
			continue
		}
		sectors, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil || sectors > (maxVirtual-info.Virtual)/sector {
			return errors.New("an extent's size is out of range")
		}
		info.Virtual += sectors * sector
	}
	return lines.Err()
}
