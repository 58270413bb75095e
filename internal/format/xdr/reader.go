package xdr

import (
	"encoding/binary"
	"math"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Reader reads XDR items from a byte slice, front to back. It never reads past
// the slice, never accepts a count that the remaining bytes cannot hold, and
// its results keep no reference to the slice.
//
// The first error sticks: later reads return zero values and Err
// names the field and the bound. So a decoder reads all its fields and checks
// once.
type Reader struct {
	buf []byte
	off int
	err error
}

// NewReader reads from b, which must not change while it is read.
func NewReader(b []byte) *Reader { return &Reader{buf: b} }

// Err is the first error, or nil.
func (r *Reader) Err() error { return r.err }

// Rest is the number of bytes not yet read. A well-formed payload leaves none.
func (r *Reader) Rest() int { return len(r.buf) - r.off }

// End returns the first error, or an error if there are trailing bytes.
func (r *Reader) End() error {
	if r.err == nil && r.Rest() > 0 {
		r.err = invalid("%d bytes are left over after the last field", r.Rest())
	}
	return r.err
}

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.Call, format, args...)
}

func (r *Reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = invalid(format, args...)
	}
}

// take returns the next n bytes of the buffer itself, or nil.
func (r *Reader) take(field string, n int) []byte {
	if r.err != nil {
		return nil
	}
	if n > r.Rest() {
		r.err = invalid("%s: needs %d bytes and %d are left", field, n, r.Rest())
		return nil
	}
	b := r.buf[r.off : r.off+n : r.off+n]
	r.off += n
	return b
}

// Uint32 reads an unsigned int.
func (r *Reader) Uint32(field string) uint32 {
	b := r.take(field, 4)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// Int32 reads an int.
func (r *Reader) Int32(field string) int32 { return int32(r.Uint32(field)) }

// Uint64 reads an unsigned hyper.
func (r *Reader) Uint64(field string) uint64 {
	b := r.take(field, 8)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Uint16 reads an unsigned short, which fills four bytes on the wire.
func (r *Reader) Uint16(field string) uint16 { return uint16(r.Uint32(field)) }

// Int64 reads a hyper.
func (r *Reader) Int64(field string) int64 { return int64(r.Uint64(field)) }

// Float64 reads a double.
func (r *Reader) Float64(field string) float64 { return math.Float64frombits(r.Uint64(field)) }

// Flag reads a boolean or the mark before an optional item. Anything but zero
// is true: some clients send 01 00 00 00.
func (r *Reader) Flag(field string) bool { return r.Uint32(field) != 0 }

// Char reads one char, which fills four bytes on the wire.
func (r *Reader) Char(field string) byte { return byte(r.Uint32(field)) }

// Count reads the length of a list. It refuses a length above limit, or more items of
// at least itemSize bytes than the remaining bytes can hold, so
// that a caller may allocate as many as Count returns.
func (r *Reader) Count(field string, limit, itemSize int) int {
	n := r.Uint32(field)
	if r.err != nil {
		return 0
	}
	if uint64(n) > uint64(limit) {
		r.err = invalid("%s: %d items are over the limit of %d", field, n, limit)
		return 0
	}
	if int64(n)*int64(itemSize) > int64(r.Rest()) {
		r.err = invalid("%s: claims %d items and only %d bytes are left", field, n, r.Rest())
		return 0
	}
	return int(n)
}

// packed reads n bytes and the zero to three bytes of padding to a multiple of four.
func (r *Reader) packed(field string, n int) []byte {
	b := r.take(field, n+pad(n))
	if b == nil {
		return nil
	}
	return b[:n:n]
}

// counted reads a length of at most limit, and that many bytes. The result is part of the buffer.
func (r *Reader) counted(field string, limit int) []byte {
	n := r.Uint32(field)
	if r.err != nil {
		return nil
	}
	if uint64(n) > uint64(limit) {
		r.err = invalid("%s: %d bytes are over the limit of %d", field, n, limit)
		return nil
	}
	return r.packed(field, int(n))
}

// String reads a string of at most limit bytes.
func (r *Reader) String(field string, limit int) string { return string(r.counted(field, limit)) }

// OptString reads a string that may be absent (nil).
func (r *Reader) OptString(field string, limit int) *string {
	if !r.Flag(field) || r.err != nil {
		return nil
	}
	s := r.String(field, limit)
	return &s
}

// Opaque reads a counted run of at most limit packed bytes.
func (r *Reader) Opaque(field string, limit int) []byte {
	b := r.counted(field, limit)
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}

// UUID reads sixteen packed bytes.
func (r *Reader) UUID(field string) (id UUID) {
	copy(id[:], r.take(field, len(id)))
	return id
}

// Chars reads a counted list of at most limit chars, four bytes each.
func (r *Reader) Chars(field string, limit int) []byte {
	return r.chars(field, r.Count(field, limit, 4))
}

// FixedChars reads exactly len(into) chars, four bytes each.
func (r *Reader) FixedChars(field string, into []byte) { copy(into, r.chars(field, len(into))) }

func (r *Reader) chars(field string, n int) []byte {
	b := r.take(field, 4*n)
	if len(b) == 0 {
		return nil
	}
	out := make([]byte, n)
	for i := range out {
		out[i] = b[4*i+3]
	}
	return out
}

// pad is how many bytes fill n up to a multiple of four.
func pad(n int) int { return -n & 3 }
