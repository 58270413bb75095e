package xdr

// UUID is an object's identity as it stands on the wire.
type UUID [16]byte

// Message is anything that can be put on the wire and taken off it.
type Message interface {
	// Append appends the message to b. It refuses values over a limit of the
	// protocol, because the peer would drop the connection over them; the bytes
	// returned with an error are not usable.
	Append(b []byte) ([]byte, error)
	// Decode takes the message off r. It does not ask for the end of the
	// payload; r.End does.
	Decode(r *Reader) error
}

// makeList makes a list whose length Count has checked; nil for 0.
func makeList[T any](n int) []T {
	if n == 0 {
		return nil
	}
	return make([]T, n)
}
