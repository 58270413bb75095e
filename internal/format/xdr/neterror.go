package xdr

// NetError is the payload of a reply or stream packet with StatusError. The
// numbers are libvirt's; this package does not know their meaning.
//
// The layout has room for object references, but no implementation sends
// them: Append leaves them absent and Decode skips them.
type NetError struct {
	Code, Domain     int32
	Message          *string
	Level            int32
	Str1, Str2, Str3 *string
	Int1, Int2       int32
}

// Append appends the encoded error to b.
func (e *NetError) Append(b []byte) ([]byte, error) {
	w := writer{b: b}
	w.int32(e.Code)
	w.int32(e.Domain)
	w.optString("error.message", e.Message)
	w.int32(e.Level)
	w.flag(false)
	w.optString("error.str1", e.Str1)
	w.optString("error.str2", e.Str2)
	w.optString("error.str3", e.Str3)
	w.int32(e.Int1)
	w.int32(e.Int2)
	w.flag(false)
	return w.b, w.err
}

// Decode decodes the error from r.
func (e *NetError) Decode(r *Reader) error {
	e.Code, e.Domain = r.Int32("error.code"), r.Int32("error.domain")
	e.Message = r.OptString("error.message", MaxString)
	e.Level = r.Int32("error.level")
	if r.Flag("error.dom") {
		r.String("error.dom.name", MaxString)
		r.UUID("error.dom.uuid")
		r.Int32("error.dom.id")
	}
	e.Str1 = r.OptString("error.str1", MaxString)
	e.Str2 = r.OptString("error.str2", MaxString)
	e.Str3 = r.OptString("error.str3", MaxString)
	e.Int1, e.Int2 = r.Int32("error.int1"), r.Int32("error.int2")
	if r.Flag("error.net") {
		r.String("error.net.name", MaxString)
		r.UUID("error.net.uuid")
	}
	return r.Err()
}

// StreamHole is the payload of a TypeStreamHole packet.
type StreamHole struct {
	Length int64 // bytes
	Flags  uint32
}

// Append appends the encoded hole to b.
func (h *StreamHole) Append(b []byte) ([]byte, error) {
	w := writer{b: b}
	w.int64(h.Length)
	w.uint32(h.Flags)
	return w.b, nil
}

// Decode decodes the hole from r.
func (h *StreamHole) Decode(r *Reader) error {
	h.Length, h.Flags = r.Int64("hole.length"), r.Uint32("hole.flags")
	return r.Err()
}
