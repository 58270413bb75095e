package scope

// Record is the part of a scope that an operation keeps. The zero value gives a scope that may do nothing.
type Record struct {
	// Client is the name of the client; empty: see Scope.For.
	Client string `json:",omitempty"`
	// Anywhere says that no folders hold the client.
	Anywhere bool `json:",omitempty"`
	// Folders are those that hold the client, unless Anywhere is set. None is nowhere.
	Folders []string `json:",omitempty"`
	// Granted is false only in the zero value.
	Granted bool `json:",omitempty"`
}

// Record is what to keep of the scope.
func (s Scope) Record() Record {
	r := Record{Client: s.client, Granted: s.granted, Anywhere: s.granted && s.paths.anywhere}
	if !r.Anywhere {
		r.Folders = s.Folders()
	}
	return r
}

// Scope is the scope that an operation is ended in. The operation was authorized and its quota taken when it
// began: neither is asked for again, whatever the rules are by now. Its paths stay held.
func (r Record) Scope() Scope {
	if !r.Granted {
		return Scope{}
	}
	s := Scope{granted: true, begun: true, client: r.Client, reason: "an operation that was begun", paths: Paths{anywhere: r.Anywhere}}
	if !r.Anywhere {
		s = s.Within(r.Folders)
	}
	return s
}
