package memory

import "github.com/lodge-kvm/lodge/internal/control/fleet"

// Mode is what the manager may do. A guest's marks may hold one, too, so package fleet defines it.
type Mode = fleet.MemoryMode

// Modes.
const (
	Off    = fleet.MemoryOff
	Advise = fleet.MemoryAdvise
	Act    = fleet.MemoryAct
)
