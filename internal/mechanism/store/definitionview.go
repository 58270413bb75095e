package store

// DefinitionView is the definition in a record, for clients that read definitions from elsewhere.
type DefinitionView struct {
	Name, UUID string
	// XML is the definition in libvirt's form; empty: there is never one.
	XML       string
	Autostart bool
	// Template says that the object exists to be cloned only, and must not be started.
	Template bool
	// Fenced says that its images must stay inside some folders. No document has these rules.
	Fenced bool
}
