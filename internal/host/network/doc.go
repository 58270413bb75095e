// Package network keeps the host's virtual networks and plugs guests' NICs
// into them: what is defined, what runs, who has which address.
//
// A network is defined by a document of libvirt's format (xml.go), understood
// as a Definition, and run by means of room hostnet: a bridge, firewall rules and
// a dnsmasq. Verbs on one network take turns; they never wait for another
// network, and readers wait for nobody: they read the View that was published
// last. What runs outlives the daemon and is adopted by the next one.
//
// What may enter: everything about networks and the host's end of NICs. What
// may not: codes and numbers of libvirt's protocol, guests, and direct calls
// to the kernel, which are room hostnet's.
package network
