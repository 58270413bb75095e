// Package hostcalls serves libvirt's calls about the host: capabilities, CPU models, node information, node devices
// and secrets.
package hostcalls
