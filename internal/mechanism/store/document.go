package store

// Document is what a record defines, for who takes definitions elsewhere.
type Document struct {
	Name, UUID string
	// XML is the definition in libvirt's own form; empty: there is none for good.
	XML       string
	Autostart bool
	// Template says that it is there to be cloned only, and must not be started.
	Template bool
	// Fenced says that its images must not lead out of some folders, which no document tells.
	Fenced bool
}
