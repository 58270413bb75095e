// Package importer exports the definitions of a store as plain libvirt XML files in
// the layout of /etc/libvirt, and imports such a tree, libvirt's own or an export,
// into a daemon.
//
//	qemu/NAME.xml             domains      qemu/autostart/NAME.xml
//	                                        qemu/template/NAME.xml (Lodge's own)
//	qemu/networks/NAME.xml    networks     qemu/networks/autostart/NAME.xml
//	storage/NAME.xml          pools        storage/autostart/NAME.xml
//	secrets/UUID.xml          secrets      secrets/UUID.base64 (import only)
//
// Links in the autostart folders name the objects that start with the host. Links in
// the template folder name the domains that can be cloned but not started.
//
// What belongs here: files and folders. What does not: the meaning of a definition
// (packages guest, network, volume and secret) and the connection to a daemon (the
// caller).
package importer

// Kind is the kind of object that a definition is of.
type Kind string

// The kinds in the order of an import: each after those that it may depend on.
const (
	Secret  Kind = "secret"
	Network Kind = "network"
	Pool    Kind = "pool"
	Domain  Kind = "domain"
)

// layout is the folder of a kind's files in a tree.
type layout struct {
	kind   Kind
	folder string
}

var layouts = []layout{
	{Secret, "secrets"},
	{Network, "qemu/networks"},
	{Pool, "storage"},
	{Domain, "qemu"},
}
