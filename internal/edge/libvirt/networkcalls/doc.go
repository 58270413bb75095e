// Package networkcalls serves libvirt's calls about networks, their ports and leases.
package networkcalls
