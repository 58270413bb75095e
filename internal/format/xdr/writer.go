package xdr

import "encoding/binary"

// writer appends items to b. The first item over a limit sticks in err; later
// output is not usable.
type writer struct {
	b   []byte
	err error
}

func (w *writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = invalid(format, args...)
	}
}

func (w *writer) uint32(v uint32) { w.b = binary.BigEndian.AppendUint32(w.b, v) }
func (w *writer) int32(v int32)   { w.uint32(uint32(v)) }
func (w *writer) uint16(v uint16) { w.uint32(uint32(v)) }
func (w *writer) char(v byte)     { w.uint32(uint32(v)) }
func (w *writer) uint64(v uint64) { w.b = binary.BigEndian.AppendUint64(w.b, v) }
func (w *writer) int64(v int64)   { w.uint64(uint64(v)) }
func (w *writer) uuid(v UUID)     { w.b = append(w.b, v[:]...) }

func (w *writer) flag(v bool) {
	if v {
		w.uint32(1)
		return
	}
	w.uint32(0)
}

// count writes the length of a list.
func (w *writer) count(field string, n, limit int) {
	if n > limit {
		w.fail("%s: %d items are over the limit of %d", field, n, limit)
	}
	w.uint32(uint32(n))
}

// length writes the number of bytes that follow and reports whether it is within the limit.
func (w *writer) length(field string, n, limit int) bool {
	if n > limit {
		w.fail("%s: %d bytes are over the limit of %d", field, n, limit)
		return false
	}
	w.uint32(uint32(n))
	return true
}

func (w *writer) fill(n int) {
	for range pad(n) {
		w.b = append(w.b, 0)
	}
}

func (w *writer) string(field, s string) {
	if w.length(field, len(s), MaxString) {
		w.b = append(w.b, s...)
		w.fill(len(s))
	}
}

func (w *writer) optString(field string, s *string) {
	if w.flag(s != nil); s != nil {
		w.string(field, *s)
	}
}

func (w *writer) opaque(field string, data []byte, limit int) {
	if w.length(field, len(data), limit) {
		w.b = append(w.b, data...)
		w.fill(len(data))
	}
}

func (w *writer) chars(field string, data []byte, limit int) {
	w.count(field, len(data), limit)
	if w.err == nil {
		w.fixedChars(data)
	}
}

func (w *writer) fixedChars(data []byte) {
	for _, c := range data {
		w.char(c)
	}
}
