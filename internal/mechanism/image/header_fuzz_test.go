package image

import (
	"cmp"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// memory is an image with some bytes at its beginning, some at a later offset, and zeros
// between.
type memory struct {
	head, far []byte
	at        int64 // where far begins
	outside   bool  // a read began before the start of the image
}

func (m *memory) Size() int64 { return max(int64(len(m.head)), m.at+int64(len(m.far))) }

func (m *memory) ReadAt(into []byte, at int64) (int, error) {
	if at < 0 {
		m.outside = true
		return 0, os.ErrInvalid
	}
	n := int(min(int64(len(into)), max(m.Size()-at, 0)))
	clear(into[:n])
	for _, part := range []struct {
		at   int64
		text []byte
	}{{0, m.head}, {m.at, m.far}} {
		switch from := part.at - at; {
		case from >= 0 && from < int64(n):
			copy(into[from:n], part.text)
		case from < 0 && -from < int64(len(part.text)):
			copy(into[:n], part.text[-from:])
		}
	}
	if n < len(into) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memory) Seek(int64, int) (int64, error) { return m.Size(), nil }
func (m *memory) Stat() (os.FileInfo, error)     { return m, nil }
func (m *memory) Name() string                   { return "image" }
func (m *memory) Mode() os.FileMode              { return 0o600 }
func (m *memory) ModTime() time.Time             { return time.Time{} }
func (m *memory) IsDir() bool                    { return false }
func (m *memory) Sys() any                       { return nil }

// FuzzHeader inspects an image as every format and as the format that its header claims.
// Nothing is read before the start of the image, the values taken from it stay within
// bounds, and an image that is declared raw is read as raw.
// Promise: X7
func FuzzHeader(f *testing.F) {
	header := func(size int, magic string, fields map[int]any) []byte {
		h := make([]byte, size)
		copy(h, magic)
		for at, value := range fields {
			if _, err := binary.Encode(h[at:], binary.BigEndian, value); err != nil {
				f.Fatal(err)
			}
		}
		return h
	}
	add := func(head []byte) { f.Add(head, uint32(0), []byte{}) }
	cow := map[int]any{4: uint32(3), 8: uint64(120), 16: uint32(2), 20: uint32(16), 24: uint64(1 << 30), 100: uint32(104), 104: uint32(extensionBackingFormat), 108: uint32(3), 112: [3]byte([]byte("raw")), 120: [2]byte([]byte("/b"))}
	add(header(128, "QFI\xfb", cow))
	cow[100], cow[72] = uint32(112), uint64(1<<2|1<<4)
	add(header(128, "QFI\xfb", cow))
	add(header(80, "QFI\xfb", map[int]any{4: uint32(2), 8: uint64(72), 16: uint32(2), 20: uint32(9), 32: uint32(1)}))
	add(header(60, "QFI\xfb", map[int]any{4: uint32(1), 8: uint64(48), 16: uint32(2), 36: uint32(1)}))
	add(header(70, "QED\x00", map[int]any{16: byte(1 | qedBackingIsRaw), 56: byte(64), 60: byte(2)}))
	add(header(0x178, "", map[int]any{0x40: uint32(0x7f10dabe), 0x170: uint64(1 << 20)}))
	add(header(64, "conectix", map[int]any{28: [4]byte([]byte("qem2")), 48: uint64(1 << 20)}))
	add(header(64, "conectix", map[int]any{56: uint16(9), 58: byte(9), 59: byte(9)}))
	add(header(64, "COWD", map[int]any{12: byte(9)}))
	add([]byte("# Disk DescriptorFile\nRW 10 SPARSE \"x\"\nparentFileNameHint=\"y\"\n"))
	add(header(108, luksMagic, map[int]any{6: uint16(1), 104: uint32(2)}))
	add(header(108, luksMagic, map[int]any{6: uint16(2)}))
	f.Add(header(64, "KDMV", map[int]any{12: byte(9), 28: byte(2), 36: byte(1)}), uint32(2*sector), []byte("RW 10 SPARSE \"x\"\n"))
	f.Add([]byte{}, uint32(isoMagicAt), []byte(isoMagic))
	// A region table, with the metadata behind it in the same bytes.
	regions := header(16+32+32+32+8, "regi", map[int]any{8: byte(1), 16: [16]byte(vhdxMetadata)})
	table := vhdxRegions + 48
	binary.LittleEndian.PutUint64(regions[32:], uint64(table))
	copy(regions[48:], "metadata")
	regions[48+10] = 1
	copy(regions[48+32:], vhdxSize)
	regions[48+32+16] = 64
	f.Add([]byte("vhdxfile"), uint32(vhdxRegions), regions)
	f.Fuzz(func(t *testing.T, head []byte, at uint32, far []byte) {
		m := &memory{head: head, far: far, at: int64(at)}
		if raw, err := Inspect(m, Raw); err != nil || raw.Virtual != uint64(m.Size()) || raw.Backing != nil || raw.Encrypted {
			t.Fatalf("declared raw it is %+v, %v", raw, err)
		}
		probed, err := Probe(m)
		if err != nil || probed != Raw && !slices.Contains(Formats(), probed) {
			t.Fatalf("it is probed as %q, %v", probed, err)
		}
		for _, format := range append(Formats(), LUKS, "") {
			info, err := Inspect(m, format)
			if err != nil {
				if !fault.Is(err, fault.Invalid) {
					t.Fatal(err)
				}
				continue
			}
			if info.Virtual > maxVirtual || info.Backing != nil && (len(info.Backing.Name) > maxDescriptor || len(info.Backing.Format) > 15) {
				t.Fatalf("%s: %+v", format, info)
			}
			if format == Qcow2 && (info.ClusterSize < 1<<minClusterBits || info.ClusterSize > 1<<maxClusterBits) {
				t.Fatalf("clusters of %d bytes", info.ClusterSize)
			}
			if want := cmp.Or(format, probed); info.Format != want {
				t.Fatalf("%q is read as %q", want, info.Format)
			}
		}
		if m.outside {
			t.Fatal("something is read from before the image")
		}
	})
}
