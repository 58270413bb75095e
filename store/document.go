package store

// Document is what a record defines, for who takes definitions elsewhere.
type Document struct {
	Name, UUID string
	// XML is the definition in libvirt's own form; empty: there is none for good.
	XML       string
	Autostart bool
}
