package xdr

import (
	"encoding/binary"
	"math"
)

// UUID is an object's identity as it stands on the wire.
type UUID [16]byte

// Message is anything that can be put on the wire and taken off it.
type Message interface {
	// Append puts the message behind b. It refuses what is over a limit of the
	// protocol, because the peer would drop the connection over it; b is then
	// returned as far as it got and is of no use.
	Append(b []byte) ([]byte, error)
	// Decode takes the message off r. It does not ask for the end of the
	// payload; r.End does.
	Decode(r *Reader) error
}

var zeros [3]byte

// AppendUint32 appends an unsigned int.
func AppendUint32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }

// AppendInt32 appends an int.
func AppendInt32(b []byte, v int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(v)) }

// AppendUint64 appends an unsigned hyper.
func AppendUint64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

// AppendInt64 appends a hyper.
func AppendInt64(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }

// AppendFloat64 appends a double.
func AppendFloat64(b []byte, v float64) []byte { return AppendUint64(b, math.Float64bits(v)) }

// AppendFlag appends a boolean, or the mark before an optional item.
func AppendFlag(b []byte, v bool) []byte {
	if v {
		return append(b, 0, 0, 0, 1)
	}
	return append(b, 0, 0, 0, 0)
}

// AppendChar appends one char, four bytes wide.
func AppendChar(b []byte, v byte) []byte { return append(b, 0, 0, 0, v) }

// AppendCount appends the length of a list of at most limit items.
func AppendCount(b []byte, field string, n, limit int) ([]byte, error) {
	if n > limit {
		return b, invalid("%s: %d items are over the limit of %d", field, n, limit)
	}
	return AppendUint32(b, uint32(n)), nil
}

// AppendString appends a string of at most limit bytes.
func AppendString(b []byte, field, s string, limit int) ([]byte, error) {
	if len(s) > limit {
		return b, invalid("%s: %d bytes are over the limit of %d", field, len(s), limit)
	}
	b = AppendUint32(b, uint32(len(s)))
	b = append(b, s...)
	return append(b, zeros[:pad(len(s))]...), nil
}

// AppendOptString appends a string that may be absent (nil).
func AppendOptString(b []byte, field string, s *string, limit int) ([]byte, error) {
	b = AppendFlag(b, s != nil)
	if s == nil {
		return b, nil
	}
	return AppendString(b, field, *s, limit)
}

// AppendOpaque appends a counted run of packed bytes.
func AppendOpaque(b []byte, field string, data []byte, limit int) ([]byte, error) {
	if len(data) > limit {
		return b, invalid("%s: %d bytes are over the limit of %d", field, len(data), limit)
	}
	b = AppendUint32(b, uint32(len(data)))
	b = append(b, data...)
	return append(b, zeros[:pad(len(data))]...), nil
}

// AppendChars appends a counted list of chars, four bytes each.
func AppendChars(b []byte, field string, data []byte, limit int) ([]byte, error) {
	b, err := AppendCount(b, field, len(data), limit)
	if err != nil {
		return b, err
	}
	return AppendFixedChars(b, data), nil
}

// AppendFixedChars appends chars without a count, four bytes each.
func AppendFixedChars(b, data []byte) []byte {
	for _, c := range data {
		b = append(b, 0, 0, 0, c)
	}
	return b
}
