package xdr

import "iter"

// Stream is the direction of a call's stream, if it opens one.
type Stream uint8

// The directions of a stream.
const (
	StreamNone Stream = iota
	StreamUp          // client to server
	StreamDown        // server to client
	StreamBoth
)

// FDs says whether descriptors are passed with a call, and in which direction.
type FDs uint8

// The directions of descriptors.
const (
	FDsNone FDs = iota
	FDsIn       // with the call
	FDsOut      // with the reply
)

// Procedure is one line of the procedure table.
type Procedure struct {
	Program Program
	Number  int32
	Name    string // as libvirt spells it, DOMAIN_DEFINE_XML

	Priority        bool // must not wait behind slow calls
	RefusedReadOnly bool // refused on a read-only connection; see RefusesReadOnly
	Event           bool // a message from the server, not a call
	Stream          Stream
	FDs             FDs

	// NewArgs and NewRet make an empty message of the right type, ready to be
	// decoded into. Both are nil where there is no payload; for an Event only
	// NewArgs is set, and it is the message.
	NewArgs, NewRet func() Message
}

func init() {
	number(ProgramRemote, remoteProcedures[:])
	number(ProgramQEMU, qemuProcedures[:])
}

// number sets the fields that follow from a procedure's place in the generated table.
func number(program Program, table []Procedure) {
	for i := range table {
		table[i].Program, table[i].Number = program, int32(i)
	}
}

// Lookup finds a procedure, or returns nil if the table has none.
func Lookup(program Program, number int32) *Procedure {
	table := procedures(program)
	if number < 0 || int(number) >= len(table) || table[number].Name == "" {
		return nil
	}
	return &table[number]
}

// Procedures returns every call and event of a program, in the order of numbers.
func Procedures(program Program) iter.Seq[*Procedure] {
	return func(yield func(*Procedure) bool) {
		table := procedures(program)
		for i := range table {
			if table[i].Name != "" && !yield(&table[i]) {
				return
			}
		}
	}
}

func procedures(program Program) []Procedure {
	switch program {
	case ProgramRemote:
		return remoteProcedures[:]
	case ProgramQEMU:
		return qemuProcedures[:]
	}
	return nil
}
