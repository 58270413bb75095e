// Package hostnet is Lodge's hands on the host's network: bridges, taps and
// macvtaps, addresses, routes, neighbours and counters over netlink, firewall
// rules over nftables, and the dnsmasq processes that answer DHCP and DNS.
//
// It knows mechanisms and no policy: which network exists, who may use it and
// what it is called is decided above, in room network. What may enter are
// single operations on links that are told everything by their caller; what
// may not are definitions, XML and anything remembered between two calls,
// save the handle of a process.
//
// All calls act in the network namespace of the calling process. Netlink
// requests carry the library's own time limit, waits for processes a context.
package hostnet
