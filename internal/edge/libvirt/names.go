package libvirt

import "github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"

// The types of package rpc that users of the server name.
type (
	// Config says what to serve, and to whom.
	Config = rpc.Config
	// Listener takes clients in.
	Listener = rpc.Listener
	// Rooms are what the calls act on.
	Rooms = rpc.Rooms
	// Server serves libvirt's protocol.
	Server = rpc.Server
)
