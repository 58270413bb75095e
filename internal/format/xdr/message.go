package xdr

// UUID is an object's UUID on the wire.
type UUID [16]byte

// Message is a payload that can be encoded and decoded.
type Message interface {
	// Append appends the encoded message to b. It refuses values over a limit of the
	// protocol, because the peer would close the connection. The bytes returned with
	// an error are not usable.
	Append(b []byte) ([]byte, error)
	// Decode decodes the message from r. It does not check for trailing bytes;
	// r.End does.
	Decode(r *Reader) error
}

// makeList makes a list whose length Count has checked; nil for 0.
func makeList[T any](n int) []T {
	if n == 0 {
		return nil
	}
	return make([]T, n)
}
