package scope

// Record is the part of a scope that is stored with an operation. The zero value gives the zero Scope, which may do
// nothing.
type Record struct {
	// Client is the name of the client; empty: the work is not counted (see Scope.CountedFor).
	Client string `json:",omitempty"`
	// Anywhere says that files may lie anywhere.
	Anywhere bool `json:",omitempty"`
	// Folders are the folders in which files must lie, unless Anywhere is set. Without any, no file may be opened.
	Folders []string `json:",omitempty"`
	// Granted is false only in the zero value.
	Granted bool `json:",omitempty"`
}

// Record returns the part of the scope to store.
func (s Scope) Record() Record {
	r := Record{Client: s.client, Granted: s.granted, Anywhere: s.granted && s.paths.anywhere}
	if !r.Anywhere {
		r.Folders = s.Folders()
	}
	return r
}

// Scope returns the scope in which a later daemon ends the operation. The operation was authorized, and its quota
// reserved, when it began: neither is checked again, even if the rules have changed. Its folders stay.
func (r Record) Scope() Scope {
	if !r.Granted {
		return Scope{}
	}
	s := Scope{granted: true, authorized: true, client: r.Client, reason: "an operation that was begun", paths: Paths{anywhere: r.Anywhere}}
	if !r.Anywhere {
		s = s.Within(r.Folders)
	}
	return s
}
