package libvirt

import (
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
)

// New makes a server; Serve runs it.
func New(c rpc.Config) *rpc.Server { return rpc.NewServer(c, newTable()) }
