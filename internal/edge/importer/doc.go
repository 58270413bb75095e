// Package importer keeps definitions as plain libvirt XML in a tree of files, in the
// layout of /etc/libvirt: an export of a store, and the import of such a tree, be
// it libvirt's own or an export, into a daemon.
//
//	qemu/NAME.xml             domains      qemu/autostart/NAME.xml
//	                                        qemu/template/NAME.xml (Lodge's own)
//	qemu/networks/NAME.xml    networks     qemu/networks/autostart/NAME.xml
//	storage/NAME.xml          pools        storage/autostart/NAME.xml
//	secrets/UUID.xml          secrets      secrets/UUID.base64 (import only)
//
// Links in a folder for autostart name what starts with the host, and those in one for
// templates the domains that are there to be cloned, and are never to be started.
//
// What belongs here: files and folders. What does not: what a definition means,
// which the rooms of guests, networks, volumes and secrets know, and how a daemon
// is reached, which is the caller's.
package importer

// Sort is a sort of definition.
type Sort string

// The sorts, in the order in which one may need another.
const (
	Secret  Sort = "secret"
	Network Sort = "network"
	Pool    Sort = "pool"
	Domain  Sort = "domain"
)

// place is where the files of a sort lie.
type place struct {
	sort   Sort
	folder string
}

var places = []place{
	{Secret, "secrets"},
	{Network, "qemu/networks"},
	{Pool, "storage"},
	{Domain, "qemu"},
}
