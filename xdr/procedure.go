package xdr

// Stream says which way the stream of a call flows, if it opens one.
type Stream uint8

// The directions of a stream.
const (
	StreamNone Stream = iota
	StreamUp          // client to server
	StreamDown        // server to client
	StreamBoth
)

// FDs says whether descriptors travel with a call.
type FDs uint8

// The ways of descriptors.
const (
	FDsNone FDs = iota
	FDsIn       // with the call
	FDsOut      // with the reply
	FDsBoth
)

// Procedure is one line of the procedure table.
type Procedure struct {
	Program Program
	Number  int32
	Name    string // as libvirt spells it, DOMAIN_DEFINE_XML

	Priority        bool // must not wait behind slow calls
	RefusedReadOnly bool // refused on a read-only connection
	Event           bool // a message from the server, not a call
	Stream          Stream
	FDs             FDs

	// NewArgs and NewRet make an empty message of the right type, ready to be
	// decoded into. Both are nil where there is no payload; for an Event only
	// NewArgs is set, and it is the message.
	NewArgs, NewRet func() Message
}

// Lookup finds a procedure, or gives nil when the table has none.
func Lookup(program Program, number int32) *Procedure {
	var table []*Procedure
	switch program {
	case ProgramRemote:
		table = remoteProcedures
	case ProgramQEMU:
		table = qemuProcedures
	default:
		return nil
	}
	if number < 0 || int(number) >= len(table) {
		return nil
	}
	return table[number]
}
