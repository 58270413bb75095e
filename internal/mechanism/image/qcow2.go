package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Bounds of qcow2: a name of a backing file has at most 1023 bytes, a cluster
// 512 B to 2 MiB, and an image few header extensions.
const (
	maxBackingName = 1023
	minClusterBits = 9
	maxClusterBits = 21
	maxExtensions  = 64
)

// Bits of the feature words, and header extensions, that matter here.
const (
	incompatExternalData = 1 << 2
	incompatExtendedL2   = 1 << 4
	compatLazyRefcounts  = 1 << 0

	extensionEnd           = 0
	extensionBackingFormat = 0xe2792aca
	qcow2OldCrypt          = 1
)

func (info *Info) readQcow2(r io.ReaderAt) error {
	h, err := readExactly(r, 0, 72)
	if err != nil {
		return err
	}
	if string(h[:4]) != "QFI\xfb" {
		return errors.New("the magic number does not match")
	}
	be := binary.BigEndian
	info.Virtual = be.Uint64(h[24:])
	info.Encrypted, info.OldEncryption = be.Uint32(h[32:]) != 0, be.Uint32(h[32:]) == qcow2OldCrypt
	bits := be.Uint32(h[20:])
	if bits < minClusterBits || bits > maxClusterBits {
		return fmt.Errorf("clusters of 2^%d bytes are out of range", bits)
	}
	info.ClusterSize = 1 << bits
	headerEnd := uint64(72)
	switch version := be.Uint32(h[4:]); version {
	case 2:
		info.Compat = "0.10"
	case 3:
		info.Compat = "1.1"
		if headerEnd, err = info.readFeatures(r); err != nil {
			return err
		}
	default:
		return fmt.Errorf("version %d is not known", version)
	}
	return info.readBacking(r, be.Uint64(h[8:]), be.Uint32(h[16:]), headerEnd)
}

// readFeatures reads what version 3 adds and gives the end of the header.
func (info *Info) readFeatures(r io.ReaderAt) (uint64, error) {
	h, err := readExactly(r, 72, 32)
	if err != nil {
		return 0, err
	}
	be := binary.BigEndian
	incompat, compat, end := be.Uint64(h), be.Uint64(h[8:]), be.Uint32(h[28:])
	info.ExternalData = incompat&incompatExternalData != 0
	info.ExtendedL2 = incompat&incompatExtendedL2 != 0
	info.LazyRefcounts = compat&compatLazyRefcounts != 0
	if end < 104 || uint64(end) > info.ClusterSize {
		return 0, fmt.Errorf("a header of %d bytes is out of range", end)
	}
	return uint64(end), nil
}

// readBacking reads the name of the backing file, which lies in the first
// cluster, and its format from the header extensions before it.
func (info *Info) readBacking(r io.ReaderAt, at uint64, size uint32, headerEnd uint64) error {
	if at == 0 || size == 0 {
		return nil
	}
	if size > maxBackingName {
		return fmt.Errorf("a backing file name of %d bytes is too long", size)
	}
	if at < headerEnd || at > info.ClusterSize || at+uint64(size) > info.ClusterSize {
		return errors.New("the backing file name lies outside the first cluster")
	}
	name, err := readExactly(r, at, int(size))
	if err != nil {
		return err
	}
	format, err := backingFormat(r, headerEnd, at)
	if err != nil {
		return err
	}
	info.Backing = &Backing{Name: string(name), Format: format}
	return nil
}

// backingFormat walks the header extensions from one offset to another.
func backingFormat(r io.ReaderAt, at, end uint64) (Format, error) {
	for range maxExtensions {
		if at+8 > end {
			return "", nil
		}
		h, err := readExactly(r, at, 8)
		if err != nil {
			return "", err
		}
		kind, size := binary.BigEndian.Uint32(h), uint64(binary.BigEndian.Uint32(h[4:]))
		at += 8
		switch {
		case kind == extensionEnd:
			return "", nil
		case size > end-at:
			return "", errors.New("a header extension is longer than the header")
		case kind == extensionBackingFormat:
			if size > 15 {
				return "", errors.New("the name of the backing format is too long")
			}
			name, err := readExactly(r, at, int(size))
			return Format(name), err
		}
		at += (size + 7) &^ 7
	}
	return "", errors.New("too many header extensions")
}

// readQcow reads the header of the first version of qcow, which has no
// extensions and so never declares the format of its backing file.
func (info *Info) readQcow(r io.ReaderAt) error {
	h, err := readExactly(r, 0, 48)
	if err != nil {
		return err
	}
	be := binary.BigEndian
	if string(h[:4]) != "QFI\xfb" || be.Uint32(h[4:]) != 1 {
		return errors.New("the magic number does not match")
	}
	info.Virtual = be.Uint64(h[24:])
	info.Encrypted = be.Uint32(h[36:]) != 0
	info.OldEncryption = info.Encrypted
	at, size := be.Uint64(h[8:]), be.Uint32(h[16:])
	if at == 0 || size == 0 {
		return nil
	}
	if size > maxBackingName {
		return fmt.Errorf("a backing file name of %d bytes is too long", size)
	}
	name, err := readExactly(r, at, int(size))
	info.Backing = &Backing{Name: string(name)}
	return err
}
