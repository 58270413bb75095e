package libvirt

import "github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"

// The types of package rpc that users of the server name.
type (
	// Config holds the objects to serve, and the checks on clients.
	Config = rpc.Config
	// Listener takes clients in.
	Listener = rpc.Listener
	// Backends are the objects that the calls act on.
	Backends = rpc.Backends
	// Server serves libvirt's protocol.
	Server = rpc.Server
)
