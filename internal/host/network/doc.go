// Package network manages the host's virtual networks and connects guests' NICs to them: definitions, running
// networks, leases.
//
// A network is defined by a document in libvirt's format (xml.go), parsed into a Definition, and run through
// room hostnet: a bridge, firewall rules and a dnsmasq. Verbs on one network take turns and never wait for
// another network. Readers never wait: they read the last published View. A running network outlives the
// daemon and is adopted by the next one.
//
// Networks and the host's end of NICs belong here. These do not: codes and numbers of libvirt's protocol,
// guests, and direct system calls (room hostnet).
package network
