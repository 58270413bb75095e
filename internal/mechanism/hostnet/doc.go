// Package hostnet changes and reads the host's network: bridges, taps and
// macvtaps, addresses, routes, neighbours and counters over netlink, firewall
// rules over nftables, and the dnsmasq processes that answer DHCP and DNS.
//
// It contains mechanisms and no policy. Package network above decides which
// networks exist, which clients may use them and their names. This package offers
// single operations on links, and the caller passes everything they need. It has
// no definitions, no XML, and no state between two calls except the handle of a
// process.
//
// All calls act in the network namespace of the calling process. Netlink
// requests carry the library's own time limit, waits for processes a context.
package hostnet
