package rpc

// Flags of dumping.
const (
	DumpCrash       = 1
	DumpLive        = 2
	DumpBypassCache = 4
	DumpReset       = 8
	DumpMemoryOnly  = 16
	DumpFlags       = 31
)

// Flags of starting a domain.
const (
	StartPaused      = 1
	StartAutoDestroy = 2
	StartBypassCache = 4
	StartForceBoot   = 8
	StartValidate    = 16
	StartResetNVRAM  = 32
)

// Flags for a number of processors other than the domain's present one: its maximum,
// or the number that the guest itself uses.
const (
	VCPUMaximum = 4
	VCPUGuest   = 8
)

// Flags of a domain's XML.
const (
	XMLSecure     = 1
	XMLInactive   = 2
	XMLUpdateCPU  = 4
	XMLMigratable = 8
)
